"""What a person is told of how a measurement came about: what bound it, what the prefix cache did."""

from __future__ import annotations

from optimizer.core.engine_config import EngineConfig
from optimizer.core.measurement import Measurement
from optimizer.load import ClosedLoop, Workload
from optimizer.load.arrival_process import ConstantRate, GammaArrivals, PoissonArrivals
from optimizer.load.hit_rate import expected_prefix_hit_rate
from optimizer.metrics import BoundContext, hit_rate_notes, judge_bound


def observation_notes(
    measurement: Measurement, config: EngineConfig, workload: Workload, study_seed: int
) -> tuple[str, ...]:
    """One line for each thing that is worth knowing beside the figures.

    Args:
        measurement: What was measured.
        config: The engine's.
        workload: The traffic.
        study_seed: Whose lengths were sent.

    Raises:
        InputError: The workload's file has gone or changed.
    """
    notes = [judge_bound(measurement, bound_context(config, workload)).note]
    engine, load = measurement.engine, measurement.load
    block = None if engine.kv_block_tokens is None else round(engine.kv_block_tokens)
    expected = None if not block else expected_prefix_hit_rate(workload, block, study_seed=study_seed)
    shared = None if workload.shared_prefix is None else workload.shared_prefix.tokens
    notes += hit_rate_notes(engine.prefix_cache_hit_rate, expected, shared_tokens=shared, block_tokens=block)
    if load.too_long:
        notes.append(f"{load.too_long} of {len(load.errors)} requests are longer than max-model-len: not sent, failed")
    if not load.level:
        notes.append(f"throughput was not level after {load.warm_up_s:.0f} s, when the window opened")
    return tuple(notes)


def bound_context(config: EngineConfig, workload: Workload) -> BoundContext:
    """What the setting and the traffic allow."""
    arrivals = workload.arrivals
    return BoundContext(
        max_num_seqs=whole_flag(config, "max-num-seqs"),
        max_num_batched_tokens=whole_flag(config, "max-num-batched-tokens"),
        in_flight=arrivals.in_flight if isinstance(arrivals, ClosedLoop) else None,
        offered_per_s=arrivals.rate_per_s
        if isinstance(arrivals, ConstantRate | PoissonArrivals | GammaArrivals)
        else None,
    )


def whole_flag(config: EngineConfig, flag: str) -> int | None:
    """A flag that is set to a whole number above zero; None where vLLM finds the value itself."""
    value = config.flags.get(flag)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
