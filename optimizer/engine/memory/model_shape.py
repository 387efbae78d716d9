"""The numbers of a model that decide its memory, from the `config.json` in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optimizer.engine.memory.architectures import FAMILIES, STATEFUL_LAYERS, STATEFUL_WORDS, Family
from optimizer.engine.memory.config_fields import CannotPredict, ConfigFields, read_json_object
from optimizer.engine.memory.quantization import Quantization, read_quantization

DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
"""Bytes of one element, by the names that vLLM's `--dtype` and `torch_dtype` use."""

_MOST_LAYERS = 2_000
_MOST_WIDTH = 4_000_000
_MOST_HEADS = 100_000
_MOST_EXPERTS = 20_000
_MOST_TOKENS = 1_000_000_000
_UNSCALED_ROPE = frozenset(
    {"default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope", "dynamic"}
)
"""Rope types whose factor vLLM does not multiply the context with; older releases did for yarn. The smaller counts."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: one compressed vector per token in place of keys and values of every head.

    Attributes:
        kv_lora_rank: Width of the latent vector.
        rope_dim: Width of the part of the key that carries the position, shared by all heads.
        nope_dim: Width of a head's key without it.
        value_dim: Width of a head's value.
        q_lora_rank: Width that queries are compressed to; 0 when they are not.
    """

    kv_lora_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_lora_rank: int

    @property
    def cached_dim(self) -> int:
        """Elements in the KV cache per token and layer."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in those layers that have one.

    Attributes:
        count: Routed experts of a layer.
        per_token: Of them, how many a token goes through.
        width: Intermediate size of one.
        shared_width: Intermediate size of the experts that every token goes through, together; 0 without.
        layers: Whether each layer has experts, in order.
    """

    count: int
    per_token: int
    width: int
    shared_width: int
    layers: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder's sizes.

    Attributes:
        architecture: As `config.json` names it.
        layers: Decoder layers.
        hidden_size: Width of the residual stream.
        query_heads: Of one layer.
        kv_heads: Of one layer; 1 in effect under latent attention.
        head_dim: Width of a head.
        latent: Set for multi-head latent attention.
        windows: For each layer the tokens it looks back, or None for all.
        mlp_width: Intermediate size of a dense layer.
        gated_mlp: Three matrices rather than two.
        experts: None for a dense model.
        vocab_size: Rows of embedding and head.
        tied_embeddings: Both are one.
        dtype: Type of the weights, as `--dtype auto` takes it.
        quantization: How a checkpoint is compressed; None when it is not.
        max_position: Longest context that vLLM takes of its own.
        notes: What is not counted.
    """

    architecture: str
    layers: int
    hidden_size: int
    query_heads: int
    kv_heads: int
    head_dim: int
    latent: LatentAttention | None
    windows: tuple[int | None, ...]
    mlp_width: int
    gated_mlp: bool
    experts: Experts | None
    vocab_size: int
    tied_embeddings: bool
    dtype: str
    quantization: Quantization | None
    max_position: int
    notes: tuple[str, ...] = ()


def read_model_shape(folder: Path) -> ModelShape:
    """Read the shape of the model in a folder.

    Raises:
        CannotPredict: There is no usable `config.json`, or the architecture is none whose memory is known.
    """
    return shape_from_config(read_json_object(folder / "config.json"))


def shape_from_config(config: ConfigFields) -> ModelShape:
    """The shape from the fields of a `config.json`.

    Raises:
        CannotPredict: A field is missing or absurd, or the architecture is none whose memory is known.
    """
    architecture, family = _family(config)
    text, notes = _language_part(config, family)
    if text.has("index_topk"):
        raise CannotPredict(f"{architecture} with sparse attention keeps an index beside its KV cache")
    layers = text.size("num_hidden_layers", "n_layer", most=_MOST_LAYERS)
    hidden = text.size("hidden_size", most=_MOST_WIDTH)
    heads = text.size("num_attention_heads", most=_MOST_HEADS)
    latent = _latent(text)
    return ModelShape(
        architecture=architecture,
        layers=layers,
        hidden_size=hidden,
        query_heads=heads,
        kv_heads=1 if latent else text.size("num_key_value_heads", most=heads, default=heads),
        head_dim=_head_dim(text, hidden, heads, latent),
        latent=latent,
        windows=_windows(text, family, layers),
        mlp_width=text.size("intermediate_size", most=_MOST_WIDTH),
        gated_mlp=family.gated,
        experts=_experts(text, family, layers),
        vocab_size=text.size("vocab_size", most=_MOST_WIDTH),
        tied_embeddings=_tied(config, text, architecture),
        dtype=_dtype(config, text),
        quantization=read_quantization(config, experts_only=family.only_experts_quantized),
        max_position=_max_position(text, architecture),
        notes=notes,
    )


def _family(config: ConfigFields) -> tuple[str, Family]:
    names = config.texts("architectures")
    if not names:
        raise CannotPredict(f"{config.origin} names no architecture")
    name = names[0]
    if any(word in name.lower() for word in STATEFUL_WORDS):
        raise CannotPredict(f"{name} is a hybrid model: some of its layers keep a state instead of keys and values")
    if name not in FAMILIES:
        raise CannotPredict(f"the memory of the architecture {name[:60]} is not known")
    return name, FAMILIES[name]


def _language_part(config: ConfigFields, family: Family) -> tuple[ConfigFields, tuple[str, ...]]:
    if not family.text_in:
        return config, ()
    notes = ("the vision part of the model is not counted",)
    for name in family.text_in:
        section = config if not name else config.section(name)
        if section is not None:
            return section, notes
    raise CannotPredict(f"{config.origin} lacks {family.text_in[0]}, the language part of a multimodal model")


def _latent(text: ConfigFields) -> LatentAttention | None:
    if not text.has("kv_lora_rank"):
        return None
    return LatentAttention(
        kv_lora_rank=text.size("kv_lora_rank", most=_MOST_WIDTH),
        rope_dim=text.size("qk_rope_head_dim", most=_MOST_WIDTH),
        nope_dim=text.size("qk_nope_head_dim", most=_MOST_WIDTH),
        value_dim=text.size("v_head_dim", most=_MOST_WIDTH),
        q_lora_rank=text.size("q_lora_rank", most=_MOST_WIDTH, default=0),
    )


def _head_dim(text: ConfigFields, hidden: int, heads: int, latent: LatentAttention | None) -> int:
    if latent is not None:
        return latent.nope_dim + latent.rope_dim
    if not text.has("head_dim") and hidden % heads:
        raise CannotPredict(f"hidden_size {hidden} in {text.origin} is no multiple of {heads} num_attention_heads")
    return text.size("head_dim", most=_MOST_WIDTH, default=hidden // heads)


def _windows(text: ConfigFields, family: Family, layers: int) -> tuple[int | None, ...]:
    """Which layers look back over a window alone: as the file lists them, or by the family's pattern, or all."""
    kinds = text.texts("layer_types")
    stateful = sorted(STATEFUL_LAYERS.intersection(kinds))
    if stateful:
        raise CannotPredict(f"{text.origin} has {stateful[0]} layers, which keep a state instead of keys and values")
    window = _window(text)
    if kinds:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown or len(kinds) != layers:
            problem = f"holds {unknown[0]!r}" if unknown else f"has {len(kinds)} entries for {layers} layers"
            raise CannotPredict(f"layer_types in {text.origin} {problem}")
        if "sliding_attention" in kinds and window is None:
            raise CannotPredict(f"{text.origin} lists sliding layers but no sliding_window")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    if window is None or not text.switch("use_sliding_window", default=True):
        return (None,) * layers
    every = text.size("sliding_window_pattern", most=_MOST_LAYERS, default=family.full_every or 0)
    if every:
        return tuple(None if (layer + 1) % every == 0 else window for layer in range(layers))
    if text.has("max_window_layers") and text.has("use_sliding_window"):
        raise CannotPredict(f"{text.origin} does not list which layers use its sliding window")
    return (window,) * layers


def _window(text: ConfigFields) -> int | None:
    return text.size("sliding_window", most=_MOST_TOKENS) if text.has("sliding_window") else None


def _experts(text: ConfigFields, family: Family, layers: int) -> Experts | None:
    names = ("n_routed_experts", "num_experts", "num_local_experts")
    if not any(text.has(name) for name in names):
        return None
    width_name = "intermediate_size" if family.experts_in_mlp else "moe_intermediate_size"
    width = text.size(width_name, most=_MOST_WIDTH)
    count = text.size(*names, most=_MOST_EXPERTS)
    shared = text.size("n_shared_experts", least=0, most=_MOST_EXPERTS, default=0) * width
    return Experts(
        count=count,
        per_token=text.size("num_experts_per_tok", "experts_per_token", most=count),
        width=width,
        shared_width=text.size("shared_expert_intermediate_size", least=0, most=_MOST_WIDTH, default=shared),
        layers=_expert_layers(text, layers),
    )


def _expert_layers(text: ConfigFields, layers: int) -> tuple[bool, ...]:
    dense_first = text.size("first_k_dense_replace", least=0, most=_MOST_LAYERS, default=0)
    every = text.size("moe_layer_freq", "decoder_sparse_step", most=_MOST_LAYERS, default=1)
    dense = set(text.numbers("mlp_only_layers"))
    # DeepSeek counts its layers from 0 and Qwen from 1; they agree where every layer has experts, as in all of theirs.
    offset = 0 if text.has("moe_layer_freq") else 1
    return tuple(
        layer >= dense_first and layer not in dense and (layer + offset) % every == 0 for layer in range(layers)
    )


def _tied(config: ConfigFields, text: ConfigFields, architecture: str) -> bool:
    """Gemma and Cohere tie embedding and head unless told otherwise; the others do not."""
    default = architecture.startswith(("Gemma", "Cohere"))
    return text.switch("tie_word_embeddings", default=config.switch("tie_word_embeddings", default=default))


def _dtype(config: ConfigFields, text: ConfigFields) -> str:
    name = text.text("dtype", "torch_dtype") or config.text("dtype", "torch_dtype") or "bfloat16"
    name = name.removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise CannotPredict(f"the type {name!r} of the weights in {config.origin} is not known")
    return name


def _max_position(text: ConfigFields, architecture: str) -> int:
    longest = text.size("max_position_embeddings", "model_max_length", "max_seq_len", most=_MOST_TOKENS)
    scaling = text.section("rope_scaling") or text.section("rope_parameters")
    kind = None if scaling is None else scaling.text("rope_type", "type")
    if scaling is None or kind is None or kind in _UNSCALED_ROPE or architecture.startswith("Gemma3"):
        return longest
    return longest * scaling.size("factor", most=10_000, default=1)
