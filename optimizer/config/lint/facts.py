"""Answers what rules ask of a subject: what a flag may be, how many requests run at once, whether limits bind."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.config.lint.setting import Origin, Setting, setting_of_flags, setting_of_parameter
from optimizer.config.lint.subject import LintSubject
from optimizer.config.lint.traffic import Traffic, traffic_of
from optimizer.config.lint.vllm_defaults import default_of
from optimizer.core.engine_config import canonical_flag
from optimizer.search_spaces import Parameter, get_flag

_GUESSED_TOKENS = 4
"""Taken where a speculative configuration does not say how many tokens it guesses: a middling number."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding, where it is or may be on.

    Attributes:
        tokens: Most tokens guessed at a time.
        optional: The search may also leave it off.
        where: What a person changes.
    """

    tokens: int
    optional: bool
    where: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A subject, with its traffic in numbers.

    Attributes:
        subject: What is looked at.
        traffic: Its workload; None when it has none.
    """

    subject: LintSubject
    traffic: Traffic | None

    @classmethod
    def of(cls, subject: LintSubject) -> Facts:
        """The facts of a subject."""
        return cls(subject, None if subject.workload is None else traffic_of(subject.workload))

    @property
    def parameters(self) -> dict[str, Parameter]:
        """What is searched, by name; empty for one configuration."""
        return {} if self.subject.space is None else dict(self.subject.space.parameters)

    def given(self, flag: str) -> Setting | None:
        """What a flag is or may be where something sets it."""
        flag = canonical_flag(flag)
        for name, parameter in self.parameters.items():
            setting = setting_of_parameter(name, parameter, flag, device_memory_bytes=self.subject.device_memory_bytes)
            if setting is not None and setting.values:
                return setting
        return setting_of_flags(self.subject.flags, flag, where=self.where(flag), origin=Origin.GIVEN)

    def setting(self, flag: str) -> Setting | None:
        """What a flag is or may be; vLLM's own value where nothing sets it, None when that is not known."""
        setting = self.given(flag)
        if setting is not None:
            return setting
        defaults = self.subject.vllm_defaults or {}
        default = get_flag(defaults, flag)
        if default is None:
            default = default_of(flag, device=self.subject.device, device_memory_bytes=self.subject.device_memory_bytes)
        return None if default is None else Setting(flag, (default,), Origin.DEFAULT, self.where(flag))

    def where(self, flag: str) -> str:
        """Where a person sets a fixed flag; a key inside a JSON value is found by the flag that holds it."""
        head = flag.partition(".")[0]
        return f"--{head}" if self.subject.space is None else f"engine.flags.{head}"

    def most_running(self) -> int | None:
        """Most requests that can be in one step: what is in flight, and what the limits of the scheduler allow."""
        in_flight = None if self.traffic is None else self.traffic.in_flight
        limits = [] if in_flight is None else [float(in_flight)]
        for flag in ("max-num-seqs", "max-num-active-seqs"):
            setting = self.setting(flag)
            if setting is not None and setting.highest is not None:
                limits.append(setting.highest)
        return int(min(limits)) if limits else None

    def block_tokens(self) -> int | None:
        """Tokens of one KV block where it is one value and prefixes are kept; None where they are not, ever."""
        caching, block = self.setting("enable-prefix-caching"), self.setting("block-size")
        if caching is None or caching.is_always(False) or block is None or block.lowest is None:
            return None
        return int(block.lowest)

    def speculation(self) -> Speculation | None:
        """Speculative decoding, or None where it is off."""
        settings = [
            setting
            for key in ("method", "model", "num_speculative_tokens")
            if (setting := self.given(f"speculative-config.{key}")) is not None
        ]
        if not settings:
            return None
        tokens = next((s.highest for s in settings if s.flag.endswith("tokens") and s.highest is not None), None)
        return Speculation(
            tokens=_GUESSED_TOKENS if tokens is None else int(tokens),
            optional=settings[0].is_searched and settings[0].optional,
            where=settings[0].where,
        )

    def runs_graphs(self) -> bool:
        """Whether CUDA graphs are captured, as far as the flags tell: on a GPU, unless they are switched off."""
        off = (("enforce-eager", True), ("optimization-level", 0), ("compilation-config.cudagraph_mode", "NONE"))
        switched_off = any((s := self.given(flag)) is not None and s.is_always(value) for flag, value in off)
        return self.subject.device == "gpu" and not switched_off

    def seeks_latency(self, *metrics: str) -> bool:
        """Whether the objective or a limit is one of these latencies (`ttft`, `tpot`, `itl`, `e2e`)."""
        objective = self.subject.objective
        sought = "" if objective is None or objective.maximise else objective.metric
        return any(slo.metric in metrics for slo in self.subject.slos) or any(f"_{m}_" in sought for m in metrics)
