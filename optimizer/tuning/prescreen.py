"""Settings whose engine cannot start for want of memory are told from the others before anything is launched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from optimizer.core.engine_config import EngineConfig
from optimizer.core.errors import InputError
from optimizer.core.failure import FailureKind
from optimizer.core.measurement import Measurement
from optimizer.core.record import ParamValue, TrialRecord
from optimizer.core.trial import TrialRole
from optimizer.engine.memory import Calibration, CannotPredict, MemoryAccount, MemoryObservation, MemoryPrediction
from optimizer.engine.vllm.startup_log import StartupFacts
from optimizer.search_spaces import GIB, SearchSpace
from optimizer.tuning.nearest_fit import Params, grid
from optimizer.tuning.settings import Settings

Records = Callable[[], Sequence[TrialRecord]]
"""Gives the study's trials as they are recorded now."""

_PASSES = 2
"""Times that every parameter is set to its most favourable value in turn; the second changes nothing as a rule."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a setting cannot start, and by how much: log(needed / there), as a failed start is graded."""

    reason: str
    violation: float


class MemoryPrescreen:
    """The memory account of one study, corrected by the study's own starts.

    What it says depends on the configuration and on the final trials of the record alone: a resumed study is told
    what an unbroken one would be.

    Args:
        account: Of the study's model on the study's device.
        settings: Turns parameters into what is launched.
        device_bytes: Memory of one device, read when it is needed.
        records: The study's trials.
        inherited: Environment variables that engines inherit from the user's shell, as far as they matter here.
    """

    def __init__(
        self,
        account: MemoryAccount,
        settings: Settings,
        *,
        device_bytes: Callable[[], int],
        records: Records,
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        self._account = account
        self._settings = settings
        self._device_bytes = device_bytes
        self._records = records
        self._inherited = dict(inherited or {})
        self._learnt: tuple[tuple[int, ...], Calibration] | None = None
        self._opened: tuple[int, Calibration] | None = None

    @property
    def account(self) -> MemoryAccount:
        """Of the study's model on its device, as it is before any start."""
        return self._account

    @property
    def device_bytes(self) -> int:
        """Memory of one device."""
        return self._device_bytes()

    @property
    def inherited(self) -> Mapping[str, str]:
        """Environment variables that engines inherit, as far as they matter here."""
        return dict(self._inherited)

    def predict(self, config: EngineConfig) -> MemoryPrediction | None:
        """What a launch would take and leave; None where that cannot be told of its flags."""
        return self._predicted(config, *self._known())

    def opened(self) -> Callable[[Mapping[str, ParamValue]], Misfit | None]:
        """The check for the proposals of one ask, by what is known now: the record is read once.

        It says why a proposal cannot start, at the optimistic end of what is predicted; None when it may.
        """
        device_bytes, calibration = self._opened = self._known()
        return lambda params: misfit_of(self._predicted(self._config(params), device_bytes, calibration))

    def foretold(self, params: Mapping[str, ParamValue]) -> MemoryPrediction | None:
        """As `predict`, by what was known when the check was last opened: the record is not read again."""
        self._opened = self._opened or self._known()
        return self._predicted(self._config(params), *self._opened)

    def require_any_fit(self, space: SearchSpace) -> None:
        """Make sure that the setting which asks for least memory may start, whatever the rules of the space.

        Raises:
            InputError: Not even that one can, so nothing in the space will start.
        """
        params, prediction = self._least_demanding(space)
        misfit = misfit_of(prediction)
        if prediction is None or misfit is None:
            return
        setting = ", ".join(f"{name}={value}" for name, value in params.items())
        weights = f"{prediction.weights_bytes / GIB:.2f} GiB of weights on one device"
        raise InputError(
            f"nothing in the space can start, whatever its speed: even with {setting}: {misfit.reason} ({weights})",
            hint="give the engine more memory, cap max-model-len lower, or take a smaller model; "
            "no limit has to be relaxed for that",
        )

    def _least_demanding(self, space: SearchSpace) -> tuple[Params, MemoryPrediction | None]:
        """Every parameter in turn at the value that leaves most room: memory depends on each of them monotonically."""
        known = self._known()

        def foretold(full: Params) -> tuple[Params, MemoryPrediction | None]:
            params = space.existing(full)
            return params, self._predicted(self._config(params), *known)

        def shortfall(full: Params) -> float:
            _, prediction = foretold(full)
            return -math.inf if prediction is None else prediction.shortfall

        full: Params = {name: grid(parameter)[0] for name, parameter in space.parameters.items()}
        for _ in range(_PASSES):
            for name, parameter in space.parameters.items():
                full = min(({**full, name: value} for value in grid(parameter)), key=shortfall)
        return foretold(full)

    def _config(self, params: Mapping[str, ParamValue]) -> EngineConfig:
        return self._settings.resolve(TrialRole.SEARCH, params).config

    def _predicted(self, config: EngineConfig, device_bytes: int, calibration: Calibration) -> MemoryPrediction | None:
        env = {**self._inherited, **config.env}
        try:
            return self._account.predict(config.flags, env, device_bytes=device_bytes, calibration=calibration)
        except CannotPredict:
            return None

    def _known(self) -> tuple[int, Calibration]:
        """The memory of a device, and the coefficients as the final trials of the record leave them."""
        device_bytes = self._device_bytes()
        ended = [trial for trial in self._records() if trial.state.is_final]
        numbers = tuple(trial.number for trial in ended)
        if self._learnt is None or self._learnt[0] != numbers:
            self._learnt = numbers, self._account.calibrate(observations(ended), device_bytes=device_bytes)
        return device_bytes, self._learnt[1]


def misfit_of(prediction: MemoryPrediction | None) -> Misfit | None:
    """The misfit of a prediction, if it is one."""
    if prediction is None or prediction.misfit is None or prediction.violation is None:
        return None
    return Misfit(prediction.misfit, prediction.violation)


def observations(trials: Sequence[TrialRecord]) -> list[MemoryObservation]:
    """What the engines of these trials reported of their memory, those included that found too little of it."""
    return [seen for trial in trials if (seen := _observation(trial)) is not None]


def with_memory_facts(
    measurement: Measurement, startup: StartupFacts | None, prediction: MemoryPrediction | None
) -> Measurement:
    """The measurement with what the start-up log told of memory, beside what was predicted before the launch."""
    facts = startup or StartupFacts()
    engine = measurement.engine
    reported = facts.kv_cache_tokens if engine.kv_cache_tokens is None else engine.kv_cache_tokens
    return replace(
        measurement,
        engine=replace(
            engine,
            kv_cache_tokens=None if reported is None else float(reported),
            kv_cache_tokens_predicted=None if prediction is None else prediction.pool_tokens.mid,
            requested_memory_bytes=_bytes(facts.requested_memory_gib),
            model_weights_bytes=_bytes(facts.model_loading_gib),
        ),
    )


def _observation(trial: TrialRecord) -> MemoryObservation | None:
    config = trial.config
    if config is None:
        return None
    tokens = trial.metrics.get("kv_cache_tokens")
    if tokens is not None:
        return MemoryObservation(
            config.flags,
            config.env,
            requested_bytes=trial.metrics.get("requested_memory_bytes"),
            pool_tokens=tokens,
            weights_bytes=trial.metrics.get("model_weights_bytes"),
        )
    failure = trial.failure
    if failure is None or failure.kind is not FailureKind.KV_CACHE_TOO_SMALL:
        return None
    facts = failure.facts
    # Without a context beside it, `available_gib` is what the host has free, and not the pool.
    left = facts.get("available_gib") if "max_model_len" in facts else facts.get("left_for_kv_gib")
    requested = _bytes(facts.get("engine_memory_gib"))
    return None if left is None else MemoryObservation(config.flags, config.env, requested, pool_bytes=left * GIB)


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB
