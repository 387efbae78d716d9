"""Parameters under vLLM's flag names, put together to the spaces of the situations."""

from __future__ import annotations

from optimizer.search_spaces import BoolParameter, ChoiceParameter, FloatParameter, IntParameter, Parameter


def utilization(low: float, high: float) -> Parameter:
    return FloatParameter(kind="float", low=low, high=high, step=0.01, default=0.92)


def log_int(low: int, high: int, default: int | None = None, flag: str | None = None) -> Parameter:
    return IntParameter(kind="int", low=low, high=high, log=True, default=default, flag=flag)


def choice(*values: int | float | str, default: int | float | str | None = None, flag: str | None = None) -> Parameter:
    return ChoiceParameter(kind="choice", choices=values, default=default, flag=flag)


def switch(default: bool) -> Parameter:
    return BoolParameter(kind="bool", default=default)


def speculation(*drafters: str) -> Parameter:
    """No speculation, or one of these methods."""
    sets: dict[str, dict[str, object]] = {"none": {}}
    for drafter in drafters:
        sets[drafter] = {"speculative-config.method": drafter}
    return ChoiceParameter.model_validate({"kind": "choice", "sets": sets, "default": "none"})


def drafts(drafter: str, high: int) -> Parameter:
    """Tokens guessed at a time, where this method guesses."""
    return IntParameter(
        kind="int",
        low=1,
        high=high,
        flag="speculative-config.num_speculative_tokens",
        when={"speculation": drafter},
    )


def graphs() -> Parameter:
    return choice(
        "NONE",
        "PIECEWISE",
        "FULL_AND_PIECEWISE",
        default="FULL_AND_PIECEWISE",
        flag="compilation-config.cudagraph_mode",
    )


def capture_size(low: int, high: int) -> Parameter:
    return log_int(low, high, flag="compilation-config.max_cudagraph_capture_size")
