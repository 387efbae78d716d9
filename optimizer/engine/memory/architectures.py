"""The model architectures whose memory is known, by the name that `config.json` gives them.

An architecture that is not listed is not guessed at: its layers may hold a cache or weights of another form.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """What the fields of a configuration leave open.

    Attributes:
        gated: The MLP has three matrices (gate, up, down) rather than two.
        full_every: Of models that mix sliding and full attention: each n-th layer attends fully, where the
            configuration itself does not say which; None where it has no such mix.
        experts_in_mlp: Experts have the size `intermediate_size` rather than `moe_intermediate_size`.
        only_experts_quantized: A quantized checkpoint keeps everything but its experts in the model's own type.
        text_in: Where the language part of a multimodal model stands; empty for a language model.
    """

    gated: bool = True
    full_every: int | None = None
    experts_in_mlp: bool = False
    only_experts_quantized: bool = False
    text_in: tuple[str, ...] = ()


_PLAIN = Family()
_UNGATED = Family(gated=False)
_EXPERTS = Family(experts_in_mlp=True)
_TEXT = Family(text_in=("text_config",))

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "CohereForCausalLM",
            "DeepseekForCausalLM",
            "DeepseekV2ForCausalLM",
            "DeepseekV3ForCausalLM",
            "GemmaForCausalLM",
            "Glm4ForCausalLM",
            "Glm4MoeForCausalLM",
            "GlmForCausalLM",
            "GraniteForCausalLM",
            "InternLM2ForCausalLM",
            "InternLM3ForCausalLM",
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "Olmo2ForCausalLM",
            "OlmoForCausalLM",
            "Phi3ForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "SeedOssForCausalLM",
            "SmolLM3ForCausalLM",
            "StableLmForCausalLM",
        ),
        _PLAIN,
    ),
    **dict.fromkeys(("ArceeForCausalLM", "NemotronForCausalLM", "Starcoder2ForCausalLM"), _UNGATED),
    **dict.fromkeys(("MiniMaxM2ForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM"), _EXPERTS),
    "Gemma2ForCausalLM": Family(full_every=2),
    "Gemma3ForCausalLM": Family(full_every=6),
    "Cohere2ForCausalLM": Family(full_every=4),
    "GptOssForCausalLM": Family(full_every=2, experts_in_mlp=True, only_experts_quantized=True),
    "Gemma3ForConditionalGeneration": Family(full_every=6, text_in=("text_config",)),
    "InternVLChatModel": Family(text_in=("llm_config",)),
    **dict.fromkeys(
        (
            "LlavaForConditionalGeneration",
            "LlavaNextForConditionalGeneration",
            "Mistral3ForConditionalGeneration",
            "Qwen3VLForConditionalGeneration",
            "Qwen3VLMoeForConditionalGeneration",
        ),
        _TEXT,
    ),
    # Their language part stands beside the vision part in older files, and in a section of its own in newer ones.
    **dict.fromkeys(
        ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"), Family(text_in=("text_config", ""))
    ),
}
"""Architecture to family."""

STATEFUL_WORDS = ("mamba", "jamba", "bamba", "zamba", "falconh1", "nemotronh", "granitemoehybrid", "qwen3next", "lfm2")
"""Parts of the names of architectures with layers that keep a state instead of keys and values."""

STATEFUL_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "gated_delta_net"})
"""Values of `layer_types` that stand for such layers."""
