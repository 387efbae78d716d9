"""How a checkpoint, or vLLM at load, compresses the weights."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.engine.memory.config_fields import CannotPredict, ConfigFields

_SCALE_BITS = 16
_ONLINE_BITS = {
    "fp8": 8.0,
    "fp8_per_tensor": 8.0,
    "fp8_per_block": 8.0,
    "fp8_per_channel": 8.0,
    "mxfp8": 8.25,
    "mxfp4": 4.25,
    "bitsandbytes": 4.5,
}
"""Values of `--quantization` that compress a plain checkpoint while it is loaded."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Compressed matrices; embedding, head, norms and routers keep the model's own type.

    Attributes:
        method: As the configuration names it.
        low_bits: Bits of a weight, scales included, at the least.
        high_bits: At the most, where groups of layers differ.
        experts_only: Only the experts are compressed.
        kv_fp8: The checkpoint asks for a KV cache of 8 bits.
    """

    method: str
    low_bits: float
    high_bits: float
    experts_only: bool = False
    kv_fp8: bool = False

    @property
    def bits(self) -> float:
        """Bits of a weight, scales included."""
        return (self.low_bits + self.high_bits) / 2


def read_quantization(config: ConfigFields, *, experts_only: bool) -> Quantization | None:
    """The compression that a checkpoint was stored with; None when it is plain.

    Raises:
        CannotPredict: The method is not known.
    """
    section = config.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method") or ""
    bits = _bits(section, method.lower())
    if bits is None:
        raise CannotPredict(f"the quantization {method[:40]!r} of {config.origin} is not known")
    return Quantization(method, *bits, experts_only=experts_only, kv_fp8=_kv_fp8(section))


def online_quantization(flag: str) -> Quantization:
    """The compression that `--quantization` asks for of a plain checkpoint.

    Raises:
        CannotPredict: The value is not known.
    """
    bits = _ONLINE_BITS.get(flag)
    if bits is None:
        raise CannotPredict(f"what --quantization {flag[:40]} leaves of a plain checkpoint is not known")
    return Quantization(flag, bits, bits)


def _bits(section: ConfigFields, method: str) -> tuple[float, float] | None:
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round", "auto_round"):
        bits = section.size("bits", "w_bit", most=16)
        group = section.size("group_size", "q_group_size", least=-1, most=1_000_000, default=128)
        # A scale of 16 bits and a zero point of the weights' own width for each group; -1 is one group per column.
        overhead = (_SCALE_BITS + bits) / group if group > 0 else 0.0
        return bits + overhead, bits + overhead
    if method in ("fp8", "fbgemm_fp8"):
        return 8.0, 8.0
    if method == "mxfp4":
        return 4.25, 4.25
    if method == "bitsandbytes":
        return (4.5, 4.5) if section.switch("load_in_4bit", default=False) else (8.0, 8.0)
    if method == "modelopt":
        return {"FP8": (8.0, 8.0), "NVFP4": (4.5, 4.5)}.get(section.text("quant_algo") or "")
    if method == "compressed-tensors":
        return _compressed_tensors(section)
    return None


def _compressed_tensors(section: ConfigFields) -> tuple[float, float] | None:
    groups = section.section("config_groups")
    weights = [] if groups is None else [group.section("weights") for group in groups.sections()]
    bits = []
    for weight in weights:
        if weight is None:
            return None
        group = weight.size("group_size", least=-1, most=1_000_000, default=0)
        width = weight.size("num_bits", most=16)
        bits.append(width + (_SCALE_BITS / group if group > 0 else 0.0))
    return (min(bits), max(bits)) if bits else None


def _kv_fp8(section: ConfigFields) -> bool:
    scheme = section.has("kv_cache_scheme")
    return scheme or section.text("kv_cache_quant_algo") == "FP8"
