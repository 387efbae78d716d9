"""What is known of a study before its first trial: the traffic, the model, the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from optimizer.core.engine_config import FlagValue
from optimizer.engine.memory import CannotPredict, Device, MemoryAccount, ModelShape
from optimizer.engine.memory.launch_sizes import LaunchSizes, launch_sizes
from optimizer.engine.memory.weights import weight_bytes
from optimizer.load.arrival_process import ClosedLoop, RampArrivals, TraceArrivals
from optimizer.load.workload import Workload
from optimizer.tuning.greybox.lengths import request_lengths

_WIDE = "bfloat16"
_WIDE_BYTES = 2


@dataclass(frozen=True, slots=True)
class ServingFacts:
    """Traffic, model and device as numbers. What is not known of model and device is None.

    Attributes:
        prompt_tokens_mean: Of whole prompts: shared prefix and repeated turns included.
        prompt_tokens_p99: Of the same.
        output_tokens_mean: Of the answers.
        output_tokens_p99: Of the answers.
        request_tokens_p99: Of prompt and answer together.
        longest_request_tokens: No request is longer.
        shared_prefix_tokens: That requests begin with; 0 where they share nothing.
        shared_prefixes: How many different such beginnings there are; 0 where they share nothing.
        repeated_tokens_mean: Of earlier turns of the same conversation, in a prompt.
        in_flight: Requests under way at any time, of a closed loop; None otherwise.
        rate_per_s: Requests per second, of an open loop; None otherwise, and where it is not told beforehand.
        weights_bytes: Of the whole model, as it is loaded.
        overhead_bytes: What an engine takes beside weights and KV cache, under vLLM's defaults.
        kv_bytes_per_token: Of all layers.
        parameters: Number of weights.
        active_parameters: Of them, how many a token goes through: fewer than all with experts.
        device: What the engine runs on.
        device_bytes: Memory of one device.
        model_context_tokens: Longest context of the model.
        default_max_num_seqs: vLLM's own on this device; None where that is not known.
        default_max_num_batched_tokens: The same.
        default_block_size: The same.
    """

    prompt_tokens_mean: float
    prompt_tokens_p99: float
    output_tokens_mean: float
    output_tokens_p99: float
    request_tokens_p99: float
    longest_request_tokens: int
    shared_prefix_tokens: int = 0
    shared_prefixes: int = 0
    repeated_tokens_mean: float = 0.0
    in_flight: int | None = None
    rate_per_s: float | None = None
    weights_bytes: float | None = None
    overhead_bytes: float | None = None
    kv_bytes_per_token: float | None = None
    parameters: float | None = None
    active_parameters: float | None = None
    device: Device = "gpu"
    device_bytes: int | None = None
    model_context_tokens: int | None = None
    default_max_num_seqs: int | None = None
    default_max_num_batched_tokens: int | None = None
    default_block_size: int | None = None


def facts_of(
    workload: Workload,
    account: MemoryAccount | None,
    *,
    device_bytes: int | None,
    fixed_flags: Mapping[str, FlagValue] | None = None,
    env: Mapping[str, str] | None = None,
) -> ServingFacts:
    """The facts of a study.

    Args:
        workload: Its traffic.
        account: Of its model on its device; None where the model is not at hand.
        device_bytes: Memory of one device; None where it is not known.
        fixed_flags: What every launch has, such as `dtype`.
        env: Environment variables that engines see.

    Raises:
        InputError: The workload's file cannot be read or is wrong.
    """
    traffic = _traffic(workload)
    if account is None or device_bytes is None:
        return dataclasses.replace(traffic, device_bytes=device_bytes)
    return _with_model(traffic, account, device_bytes, fixed_flags or {}, env or {})


def _with_model(
    traffic: ServingFacts,
    account: MemoryAccount,
    device_bytes: int,
    flags: Mapping[str, FlagValue],
    env: Mapping[str, str],
) -> ServingFacts:
    known = dataclasses.replace(
        traffic,
        device=account.device,
        device_bytes=device_bytes,
        model_context_tokens=account.shape.max_position,
        parameters=_count(account.shape),
        active_parameters=_count(_active(account.shape)),
    )
    try:
        sizes = _sizes(account, flags, env, device_bytes)
        memory = account.predict(flags, env, device_bytes=device_bytes)
    except CannotPredict:
        return known
    split = sizes.tensor_parallel * sizes.pipeline_parallel
    return dataclasses.replace(
        known,
        weights_bytes=memory.weights_bytes * split,
        overhead_bytes=max(memory.taken_bytes.mid - memory.weights_bytes, 0.0),
        kv_bytes_per_token=memory.kv_bytes_per_token * split,
        default_max_num_seqs=sizes.max_num_seqs,
        default_max_num_batched_tokens=sizes.max_num_batched_tokens,
        default_block_size=sizes.block_size,
    )


def _traffic(workload: Workload) -> ServingFacts:
    prompts, answers, repeated = request_lengths(workload)
    sharing, arrivals = workload.shared_prefix, workload.arrivals
    rate = None
    if isinstance(arrivals, RampArrivals):
        rate = arrivals.to_rate_per_s
    elif not isinstance(arrivals, ClosedLoop | TraceArrivals):
        rate = arrivals.rate_per_s
    return ServingFacts(
        prompt_tokens_mean=float(prompts.mean()),
        prompt_tokens_p99=_p99(sorted(prompts)),
        output_tokens_mean=float(answers.mean()),
        output_tokens_p99=_p99(sorted(answers)),
        request_tokens_p99=_p99(sorted(prompts + answers)),
        longest_request_tokens=workload.longest_request_tokens,
        shared_prefix_tokens=0 if sharing is None else sharing.tokens,
        shared_prefixes=0 if sharing is None else sharing.prefixes,
        repeated_tokens_mean=float(repeated.mean()),
        in_flight=arrivals.in_flight if isinstance(arrivals, ClosedLoop) else None,
        rate_per_s=rate,
    )


def _p99(ordered: list[float]) -> float:
    return float(ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)])


def _sizes(
    account: MemoryAccount, flags: Mapping[str, FlagValue], env: Mapping[str, str], device_bytes: int
) -> LaunchSizes:
    shape = account.shape
    return launch_sizes(
        flags,
        env,
        device=account.device,
        device_bytes=device_bytes,
        max_position=shape.max_position,
        latent=shape.latent is not None,
    )


def _count(shape: ModelShape) -> float:
    return sum(weight_bytes(shape, dtype=_WIDE, quantization=None, as_stored=True)) / _WIDE_BYTES


def _active(shape: ModelShape) -> ModelShape:
    """The model with as many experts as one token goes through."""
    if shape.experts is None:
        return shape
    return dataclasses.replace(shape, experts=dataclasses.replace(shape.experts, count=shape.experts.per_token))
