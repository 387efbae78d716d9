"""The memory of one launch, put together: what is asked for, what is taken, what is left for the KV cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from optimizer.core.engine_config import FlagValue
from optimizer.engine.memory.calibration import Calibration, MemoryObservation, Reading
from optimizer.engine.memory.checkpoint import checkpoint_bytes
from optimizer.engine.memory.config_fields import CannotPredict
from optimizer.engine.memory.kv_cache import KvLayout, kv_layout
from optimizer.engine.memory.launch_sizes import GIB, Device, LaunchSizes, launch_sizes
from optimizer.engine.memory.model_shape import DTYPE_BYTES, ModelShape, read_model_shape
from optimizer.engine.memory.overhead import Coefficients, Quantities, prior, quantities
from optimizer.engine.memory.quantization import Quantization, online_quantization
from optimizer.engine.memory.weights import weight_bytes

_WEIGHTS_SD = 0.01
_QUANTIZED_WEIGHTS_SD = 0.06
_UNLIKE = 3.0
"""A checkpoint this many times larger or smaller than its configuration makes it belongs to another model."""


@dataclass(frozen=True, slots=True)
class Range:
    """A prediction: the ends of a 99 % interval, and the most likely value."""

    low: float
    mid: float
    high: float


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """One launch before it is made. Bytes are those of one device.

    Attributes:
        requested_bytes: What the engine takes as its own; None where the KV pool is given instead of a share.
        weights_bytes: Weights, the most likely value.
        taken_bytes: Everything but the KV pool, weights included.
        kv_bytes_per_token: Of all layers on the device that holds most of them.
        pool_bytes: Left for the KV pool.
        pool_tokens: Whole blocks of it, in tokens; 0 where not one fits.
        max_model_len: Longest request; None where vLLM fits it to the pool.
        request_bytes: KV of one request of that length; of a single block where vLLM fits the length.
        concurrency: Such requests that the pool holds at once.
        starts: How many starts the prediction was corrected by.
        notes: What is not counted.
    """

    requested_bytes: float | None
    weights_bytes: float
    taken_bytes: Range
    kv_bytes_per_token: float
    pool_bytes: Range
    pool_tokens: Range
    max_model_len: int | None
    request_bytes: float
    concurrency: Range
    starts: int
    notes: tuple[str, ...] = ()

    @property
    def shortfall(self) -> float:
        """log(least that is needed / what there is), at the optimistic end: above 0 it cannot start.

        Least needed is what is taken plus the KV of one request. Defined however little there is, so that settings can
        be compared by it.
        """
        if self.requested_bytes is None:
            return math.log(self.request_bytes / max(self.pool_bytes.high, 1.0))
        return math.log((max(self.taken_bytes.low, 0.0) + self.request_bytes) / self.requested_bytes)

    @property
    def misfit(self) -> str | None:
        """Why it cannot start even at the optimistic end of the interval; None when it may."""
        if self.shortfall <= 0.0:
            return None
        what = "one block" if self.max_model_len is None else f"one request of {self.max_model_len} tokens"
        need = f"{what} ({_gib(self.request_bytes)} GiB)"
        if self.pool_bytes.high > 0.0:
            return f"a KV pool of at most {_gib(self.pool_bytes.high)} GiB is smaller than {need}"
        requested = self.requested_bytes or 0.0
        return (
            f"of {_gib(requested)} GiB at least {_gib(self.taken_bytes.low)} GiB are taken before the KV pool, "
            f"which needs {need}"
        )

    @property
    def violation(self) -> float | None:
        """log(KV of one request / KV pool at its optimistic end), as a failed start grades it; None when it fits."""
        if self.shortfall <= 0.0:
            return None
        if self.pool_bytes.high <= 0.0:
            return math.inf
        return max(math.log(self.request_bytes / self.pool_bytes.high), 1e-6)


_Split: TypeAlias = tuple[str, "str | None", int, int, int]
"""What weights on one device depend on: dtype, quantization, tensor, expert and pipeline parallelism."""


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch as far as it is known without calibration."""

    sizes: LaunchSizes
    layout: KvLayout
    amounts: Quantities


class MemoryAccount:
    """Predicts launches of one model on devices of one kind.

    Args:
        shape: The model.
        device: What it runs on.
        checkpoint_bytes: True bytes of its weights as they are stored; None where they are not at hand.

    Raises:
        CannotPredict: The checkpoint belongs to another model.
    """

    def __init__(self, shape: ModelShape, device: Device, *, checkpoint_bytes: int | None = None) -> None:
        self.shape = shape
        self.device = device
        self._stage_weights: dict[_Split, float] = {}
        formula = sum(weight_bytes(shape, dtype=shape.dtype, quantization=shape.quantization, as_stored=True))
        self._weights_factor = 1.0 if checkpoint_bytes is None else checkpoint_bytes / formula
        if not 1 / _UNLIKE <= self._weights_factor <= _UNLIKE:
            raise CannotPredict(
                f"the checkpoint has {(checkpoint_bytes or 0) / GIB:.2f} GiB of weights, "
                f"and its config.json makes {formula / GIB:.2f} GiB"
            )

    @classmethod
    def of_folder(cls, folder: Path, device: Device) -> MemoryAccount:
        """The account of a model in a folder.

        Raises:
            CannotPredict: The folder's configuration does not do.
        """
        return cls(read_model_shape(folder), device, checkpoint_bytes=checkpoint_bytes(folder))

    def calibrate(self, observations: Iterable[MemoryObservation], *, device_bytes: int) -> Calibration:
        """The coefficients after these starts; those that say nothing, or whose flags cannot be read, are left out.

        Args:
            observations: What engines reported, in any order.
            device_bytes: Memory of the device, for those that did not say what they took.
        """
        readings = [self._reading(observation, device_bytes) for observation in observations]
        return Calibration(*self._prior(), [reading for reading in readings if reading is not None])

    def predict(
        self,
        flags: Mapping[str, FlagValue],
        env: Mapping[str, str],
        *,
        device_bytes: int,
        calibration: Calibration | None = None,
    ) -> MemoryPrediction:
        """What a launch with these flags will take and leave.

        Args:
            flags: Canonical flag to value.
            env: Environment variables that the engine sees.
            device_bytes: Memory of one device, of which vLLM takes its share.
            calibration: What starts taught; None before the first.

        Raises:
            CannotPredict: A flag is absurd, or changes what is counted.
        """
        known = calibration or Calibration(*self._prior())
        launch = self._launch(flags, env, device_bytes)
        sizes, layout = launch.sizes, launch.layout
        taken = known.taken(launch.amounts)
        taken_bytes = Range(taken.low * GIB, taken.mid * GIB, taken.high * GIB)
        requested, pool_bytes = self._pool(launch, device_bytes, taken_bytes)
        block_bytes = max(layout.block_bytes)
        longest = sizes.max_model_len or sizes.block_size
        least, usual = (steps * sizes.max_num_batched_tokens for steps in sizes.steps_in_flight)
        tokens = _each(pool_bytes, lambda value: float(_tokens(layout, value // block_bytes, longest, usual)))
        return MemoryPrediction(
            requested_bytes=requested,
            weights_bytes=known.coefficients.weights * launch.amounts.weights * GIB,
            taken_bytes=taken_bytes,
            kv_bytes_per_token=block_bytes * len(layout.group_windows) / layout.block_size,
            pool_bytes=pool_bytes,
            pool_tokens=tokens,
            max_model_len=sizes.max_model_len,
            request_bytes=block_bytes * (layout.request_blocks(longest, least) if sizes.max_model_len else 1),
            concurrency=_each(tokens, lambda value: value / longest),
            starts=known.readings,
            notes=(*self.shape.notes, *sizes.notes),
        )

    def _pool(self, launch: _Launch, device_bytes: int, taken: Range) -> tuple[float | None, Range]:
        """What is requested, if a share is, and what that leaves for the pool."""
        sizes = launch.sizes
        given = float(sizes.kv_pool_bytes) if sizes.kv_pool_bytes is not None else None
        if sizes.kv_pool_blocks is not None:
            given = sizes.kv_pool_blocks * max(launch.layout.block_bytes)
        if given is not None:
            return None, Range(given, given, given)
        requested = math.ceil(sizes.utilization * device_bytes)
        return requested, Range(requested - taken.high, requested - taken.mid, requested - taken.low)

    def _launch(self, flags: Mapping[str, FlagValue], env: Mapping[str, str], device_bytes: int) -> _Launch:
        shape = self.shape
        sizes = launch_sizes(
            flags,
            env,
            device=self.device,
            device_bytes=device_bytes,
            max_position=shape.max_position,
            latent=shape.latent is not None,
        )
        dtype = self._dtype(sizes)
        split = (dtype, sizes.quantization, sizes.tensor_parallel, sizes.expert_ranks, sizes.pipeline_parallel)
        if split not in self._stage_weights:
            self._stage_weights[split] = self._heaviest_stage(sizes, dtype)
        weights = max(0.0, self._stage_weights[split] - sizes.offload_bytes)
        return _Launch(sizes, kv_layout(shape, sizes, dtype), quantities(shape, sizes, dtype, weights, self.device))

    def _heaviest_stage(self, sizes: LaunchSizes, dtype: str) -> float:
        stages = weight_bytes(
            self.shape,
            dtype=dtype,
            quantization=self._quantization(sizes),
            tensor_parallel=sizes.tensor_parallel,
            expert_ranks=sizes.expert_ranks,
            stages=sizes.pipeline_parallel,
        )
        return max(stages) * self._weights_factor

    def _dtype(self, sizes: LaunchSizes) -> str:
        """What the model is run in. Under `auto` vLLM takes weights of 32 bits down to 16."""
        if sizes.dtype == "auto":
            return "bfloat16" if DTYPE_BYTES[self.shape.dtype] == 4 else self.shape.dtype
        if sizes.dtype not in DTYPE_BYTES:
            raise CannotPredict(f"--dtype {sizes.dtype[:40]} is not known")
        return sizes.dtype

    def _quantization(self, sizes: LaunchSizes) -> Quantization | None:
        """The checkpoint's own compression, or else that which the flag asks for."""
        if self.shape.quantization is not None or sizes.quantization is None:
            return self.shape.quantization
        return online_quantization(sizes.quantization)

    def _reading(self, observation: MemoryObservation, device_bytes: int) -> Reading | None:
        try:
            launch = self._launch(observation.flags, observation.env, device_bytes)
        except CannotPredict:
            return None
        sizes = launch.sizes
        pool = self._observed_pool(observation, launch)
        if sizes.kv_pool_bytes is not None or sizes.kv_pool_blocks is not None or pool is None:
            return None
        requested = observation.requested_bytes or sizes.utilization * device_bytes
        weights = observation.weights_bytes
        return Reading(launch.amounts, (requested - pool) / GIB, None if weights is None else weights / GIB)

    def _observed_pool(self, observation: MemoryObservation, launch: _Launch) -> float | None:
        sizes = launch.sizes
        if observation.pool_tokens is None or sizes.max_model_len is None:
            return observation.pool_bytes
        in_flight = sizes.steps_in_flight[1] * sizes.max_num_batched_tokens
        blocks = launch.layout.pool_blocks(observation.pool_tokens, sizes.max_model_len, in_flight)
        # Half a block more, since the pool was cut to whole ones.
        return (blocks + 0.5) * max(launch.layout.block_bytes)

    def _prior(self) -> tuple[Coefficients, Coefficients]:
        sd = _WEIGHTS_SD if self.shape.quantization is None else _QUANTIZED_WEIGHTS_SD
        return prior(
            self.device,
            weights_sd=max(sd, abs(self._weights_factor - 1.0) / 2),
            experts=self.shape.experts is not None,
        )


def _each(values: Range, of: Callable[[float], float]) -> Range:
    return Range(of(values.low), of(values.mid), of(values.high))


def _tokens(layout: KvLayout, blocks: float, longest: int, in_flight: int) -> int:
    return layout.pool_tokens(int(blocks), longest, in_flight) if blocks >= 1 else 0


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"
