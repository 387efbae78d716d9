"""Cross-parameter rules: comparisons between flags that every proposal must meet before it is launched."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from optimizer.core.engine_config import FlagValue
from optimizer.core.errors import InputError
from optimizer.search_spaces.flag_paths import get_flag

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"(<=|>=|==|!=|<|>)")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_FLAG = r"[A-Za-z][\w.-]*"
_TERM = re.compile(
    rf"(?:(?P<number>{_NUMBER})|(?P<flag>{_FLAG})|(?P<flag_first>{_FLAG})\s*\*\s*(?P<factor_last>{_NUMBER})"
    rf"|(?P<factor_first>{_NUMBER})\s*\*\s*(?P<flag_last>{_FLAG}))"
)
_HINT = "write FLAG OP FLAG, such as `max-num-seqs * 8 <= max-num-batched-tokens`; OP is one of <= >= < > == !="


@dataclass(frozen=True, slots=True)
class Term:
    """One side of a rule: a number, or a flag times a number."""

    factor: float
    flag: str | None

    def value(self, flags: Mapping[str, FlagValue]) -> float | None:
        """Its number under these flags, or None when the flag is not set or holds no number (`auto`)."""
        if self.flag is None:
            return self.factor
        setting = get_flag(flags, self.flag)
        if isinstance(setting, bool) or not isinstance(setting, int | float):
            return None
        return self.factor * setting


@dataclass(frozen=True, slots=True)
class Rule:
    """A comparison that holds, or is broken; it holds when a flag it names is not set.

    Attributes:
        text: As it was written.
        left: Left side.
        comparison: One of <= >= < > == !=.
        right: Right side.
        only_if: The rule applies only where these flags have these values.
        reason: What vLLM does otherwise; empty for a rule of a space.
    """

    text: str
    left: Term
    comparison: str
    right: Term
    only_if: Mapping[str, FlagValue] = field(default_factory=dict)
    reason: str = ""

    @classmethod
    def parse(cls, text: str, *, only_if: Mapping[str, FlagValue] | None = None, reason: str = "") -> Rule:
        """Reads a rule such as `max-num-batched-tokens >= max-num-seqs`.

        Raises:
            InputError: The text is no comparison of two terms, or names no flag.
        """
        parts = _COMPARISON.split(text)
        if len(parts) != 3:
            raise InputError(f"{text!r} is no rule: it needs exactly one comparison", hint=_HINT)
        left, right = (_parse_term(part.strip(), text) for part in (parts[0], parts[2]))
        if left.flag is None and right.flag is None:
            raise InputError(f"{text!r} is no rule: it names no flag", hint=_HINT)
        return cls(text.strip(), left, parts[1], right, only_if or {}, reason)

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags it compares."""
        return tuple(term.flag for term in (self.left, self.right) if term.flag is not None)

    def broken_by(self, flags: Mapping[str, FlagValue]) -> str | None:
        """A sentence with the values that break it, or None when it holds."""
        if any(get_flag(flags, name) != value for name, value in self.only_if.items()):
            return None
        left, right = self.left.value(flags), self.right.value(flags)
        if left is None or right is None or _COMPARISONS[self.comparison](left, right):
            return None
        values = " and ".join(f"{flag} is {get_flag(flags, flag)}" for flag in self.flags)
        condition = "".join(f" (with {name} {str(value).lower()})" for name, value in self.only_if.items())
        why = f"; {self.reason}" if self.reason else ""
        return f"{self.text}{condition} does not hold: {values}{why}"


def _parse_term(text: str, rule: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise InputError(
            f"{rule!r} is no rule: {text!r} is neither a number nor a flag nor a product of the two", hint=_HINT
        )
    flag = match["flag"] or match["flag_first"] or match["flag_last"]
    factor = match["number"] or match["factor_last"] or match["factor_first"] or "1"
    return Term(float(factor), flag.replace("_", "-") if flag and "." not in flag else flag)


BUILT_IN_RULES: tuple[Rule, ...] = (
    Rule.parse("max-num-batched-tokens >= max-num-seqs", reason="vLLM refuses to start"),
    Rule.parse(
        "max-num-batched-tokens >= max-model-len",
        only_if={"enable-chunked-prefill": False},
        reason="without chunked prefill a whole prompt must fit into one step",
    ),
    Rule.parse("long-prefill-token-threshold <= max-model-len", reason="vLLM refuses to start"),
    Rule.parse("max-num-scheduled-tokens <= max-num-batched-tokens", reason="the buffers hold no more than that"),
    Rule.parse("max-num-active-seqs <= max-num-seqs", reason="vLLM refuses to start"),
    Rule.parse(
        "speculative-config.prompt_lookup_min <= speculative-config.prompt_lookup_max", reason="vLLM refuses to start"
    ),
    Rule.parse("gpu-memory-utilization > 0", reason="it is a fraction of the device's memory"),
    Rule.parse("gpu-memory-utilization <= 1", reason="it is a fraction of the device's memory"),
)
"""What vLLM itself demands of its flags (its SchedulerConfig, CacheConfig and SpeculativeConfig validators)."""
