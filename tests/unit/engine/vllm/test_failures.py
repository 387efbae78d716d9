"""What an engine's last words mean. The texts are those of real logs and of vLLM's sources, 0.26 to 0.33."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.core.failure import Blame, Failure, FailureKind, MemoryPhase
from optimizer.core.trial import Stage
from optimizer.engine.memory_kill import MemoryKill
from optimizer.engine.vllm.failures import classify
from optimizer.engine.vllm.violations import NO_POOL

WRAPPER = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
WORKER_DIED = (
    "(EngineCore pid=12) ERROR 11-29 18:50:31 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly "
    "(exit code: None), shutting down executor."
)
KV_SHORT = (
    "ValueError: To serve at least one request with the model's max seq len (16384), (0.5 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (0.36 GiB). Based on the available memory, the estimated "
    "maximum model length is 11648. Try increasing `gpu_memory_utilization` (which also controls CPU memory on the "
    "CPU backend) or decreasing `max_model_len` when initializing the engine."
)
KV_NEGATIVE = (
    "ValueError: Available memory on node 0 (5.6/7.09 GiB) on kv cache allocation is less than requested memory for "
    "kv (-0.14/0.57 GiB). Reduce CPU memory used by other processes."
)
NO_COMMON_BLOCK = "No common block size for 16 (CPU_ATTN: [MultipleOf(32)])."
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.50 GiB is free."
)
GPU_BUSY = (
    "ValueError: Free memory on device cuda:0 (20.1/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
SEQS_ABOVE_BATCH = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n"
    "  Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64). "
    "[type=value_error, input_value=ArgsKwargs((), {'runner_ty...}), input_type=ArgsKwargs]\n"
    "    For further information visit https://errors.pydantic.dev/2.12/v/value_error"
)


def in_core(text: str) -> str:
    """As EngineCore logs the exception that ends it, frames and all."""
    head = "(EngineCore pid=12) ERROR 11-29 18:50:31 [core.py:1510] "
    frames = ["Traceback (most recent call last):", '  File "/x/core.py", line 1482, in run', "    raise ValueError("]
    lines = [head + line for line in ("EngineCore failed to start.", *frames, *text.splitlines())]
    bare = ["Process EngineCore:", "Traceback (most recent call last):", '  File "/x/process.py", line 314, in _boot']
    return "\n".join(
        [*lines, *bare, "    self.run()", *text.splitlines(), "Traceback (most recent call last):", WRAPPER]
    )


def at_start(log: str, exit_code: int | None = 1) -> Failure:
    return classify(log, stage=Stage.LAUNCHING, exit_code=exit_code)


KINDS = [
    ("usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --bogus", FailureKind.REJECTED_FLAG),
    (
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8')",
        FailureKind.REJECTED_FLAG,
    ),
    ("api_server.py: error: argument --max-num-seqs: invalid int value: 'x'", FailureKind.REJECTED_FLAG),
    (
        "importlib.metadata.PackageNotFoundError: No package metadata was found for vllm",
        FailureKind.REJECTED_FLAG,
    ),
    ("vllm: error: argument -tp/--tensor-parallel-size: expected one argument", FailureKind.REJECTED_FLAG),
    ("api_server.py: error: ambiguous option: --max-n could match --max-num-seqs", FailureKind.REJECTED_FLAG),
    ("OSError: [Errno 98] Address already in use", FailureKind.PORT_TAKEN),
    (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use",
        FailureKind.PORT_TAKEN,
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        FailureKind.PORT_TAKEN,
    ),
    (GPU_BUSY, FailureKind.GPU_BUSY),
    ("RuntimeError: No CUDA GPUs are available", FailureKind.HOST_FAULT),
    ("torch.AcceleratorError: CUDA error: out of memory", FailureKind.OUT_OF_MEMORY),
    ("OSError: [Errno 24] Too many open files: '/proc/self/fd'", FailureKind.HOST_FAULT),
    ("RuntimeError: Engine core process EngineCore_0 died unexpectedly.", FailureKind.ENGINE_CRASH),
    ("Value error, Unknown quantization method: nope. Must be one of ['awq']", FailureKind.REJECTED_FLAG),
    (
        "AssertionError: Error in memory profiling. Initial free memory 70.1 GiB, current free memory 71.0 GiB.",
        FailureKind.GPU_BUSY,
    ),
    (KV_SHORT, FailureKind.KV_CACHE_TOO_SMALL),
    (KV_NEGATIVE, FailureKind.KV_CACHE_TOO_SMALL),
    (KV_NEGATIVE.replace("-0.14", "0.0"), FailureKind.KV_CACHE_TOO_SMALL),
    ("ValueError: No available memory for the cache blocks. Try increasing", FailureKind.KV_CACHE_TOO_SMALL),
    ("ValueError: Cannot auto-fit max_model_len: not enough GPU memory", FailureKind.KV_CACHE_TOO_SMALL),
    (KV_NEGATIVE.replace("-0.14", "6.14"), FailureKind.HOST_FAULT),
    (
        "ValueError: Available memory on node 0 (5.6/7.09 GiB) on startup is less than desired CPU memory utilization "
        "(0.92, 6.52 GiB).",
        FailureKind.HOST_FAULT,
    ),
    (KV_NEGATIVE.replace("(-0.14/0.57 GiB)", "(8.0 GiB)"), FailureKind.OUT_OF_MEMORY),
    (OOM, FailureKind.OUT_OF_MEMORY),
    ("torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate", FailureKind.OUT_OF_MEMORY),
    ("RuntimeError: CUDA out of memory occurred when warming up sampler with 1024", FailureKind.OUT_OF_MEMORY),
    ("Failed to load model - not enough GPU memory. Try lowering", FailureKind.OUT_OF_MEMORY),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 9 bytes. Error code 12 (Cannot allocate memory)",
        FailureKind.OUT_OF_MEMORY,
    ),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", FailureKind.HOST_FAULT),
    (SEQS_ABOVE_BATCH, FailureKind.INVALID_COMBINATION),
    ("ValueError: max_num_batched_tokens (512) is smaller than max_model_len (4096).", FailureKind.INVALID_COMBINATION),
    (f"ValueError: {NO_COMMON_BLOCK}", FailureKind.INVALID_COMBINATION),
    (
        "ValueError: World size (8) is larger than the number of available GPUs (1) in this node.",
        FailureKind.INVALID_COMBINATION,
    ),
    (
        "ValueError: Total number of attention heads (14) must be divisible by tensor parallel size (4).",
        FailureKind.INVALID_COMBINATION,
    ),
    (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
        "cached files.",
        FailureKind.HOST_FAULT,
    ),
    ("OSError: Can't load the configuration of '/models/x'. If you were", FailureKind.REJECTED_FLAG),
    ("OSError: /models/x is not a local folder and is not a valid model identifier", FailureKind.REJECTED_FLAG),
    ("ValueError: Invalid repository ID or local directory specified: '/x'.", FailureKind.REJECTED_FLAG),
    ("ValueError: Model architectures ['Foo'] are not supported for now.", FailureKind.REJECTED_FLAG),
    (
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by",
        FailureKind.STARTUP_TIMEOUT,
    ),
    (WORKER_DIED, FailureKind.ENGINE_CRASH),
    ("EngineCore encountered a fatal error.", FailureKind.ENGINE_CRASH),
]
ENDS = {FailureKind.STARTUP_TIMEOUT, FailureKind.ENGINE_CRASH}
EMPTY_CARD = GPU_BUSY.replace("20.1/79.1", "78.6/79.1").replace("0.92, 72.77", "0.995, 78.7")
KV_TOKENS_SHORT = (
    "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can be stored in KV "
    "cache (3664). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
OF_THE_HOST = {FailureKind.PORT_TAKEN, FailureKind.GPU_BUSY, FailureKind.HOST_FAULT}


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_kind_and_blame_of_each_text(text, kind):
    failure = at_start(text)
    assert failure.kind is kind
    assert failure.blame is (Blame.HOST if kind in OF_THE_HOST else Blame.CONFIG)
    assert failure.retryable is (kind in OF_THE_HOST or kind is FailureKind.ENGINE_CRASH)
    assert failure.exit_code == 1
    assert failure.stage is Stage.LAUNCHING
    assert any(line in text for line in failure.evidence)
    assert "{" not in failure.detail


@pytest.mark.parametrize(("text", "kind"), [(text, kind) for text, kind in KINDS if kind not in ENDS])
def test_the_cause_wins_over_its_wrappers_and_prefixes(text, kind):
    failure = at_start(f"{in_core(text)}\n{WORKER_DIED}")
    assert failure.kind is kind
    assert not any("pid=" in line or "[core.py" in line or "initialization failed" in line for line in failure.evidence)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (KV_SHORT, "a context of 16384 tokens needs 0.5 GiB of KV cache, 0.36 GiB are there"),
        (KV_NEGATIVE, "of 0.57 GiB engine memory -0.14 GiB are left for the KV cache"),
        (GPU_BUSY, "only 20.1 GiB of GPU memory are free, 72.77 GiB were asked for: something else holds the card"),
        (
            SEQS_ABOVE_BATCH,
            "the engine refuses the combination: max_num_batched_tokens (32) must be greater than or equal to "
            "max_num_seqs (64).",
        ),
        (
            "api_server.py: error: unrecognized arguments: --bogus",
            "the engine refuses the command line: unrecognized arguments: --bogus",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig\n"
            "gpu_memory_utilization\n  Input should be less than or equal to 1 [type=less_than_equal, "
            "input_value=1.5, input_type=float]\n    For further information visit https://errors.pydantic.dev/2",
            "the engine refuses the value of gpu_memory_utilization: Input should be less than or equal to 1",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
            "  Value error, DCP and DP are at odds. [type=value_error, input_value=ArgsKwargs((), {}), input_type=A]",
            "the engine refuses the combination: DCP and DP are at odds.",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 2 validation errors for ModelConfig",
            "the engine refuses the combination: 2 validation errors for ModelConfig",
        ),
    ],
)
@pytest.mark.parametrize("wrap", [str, in_core])
def test_the_detail_says_it_in_a_sentence(text, detail, wrap):
    assert at_start(wrap(text)).detail == detail


@pytest.mark.parametrize(
    ("earlier", "later", "kind"),
    [
        (OOM, "OSError: [Errno 98] Address already in use", FailureKind.OUT_OF_MEMORY),
        ("OSError: [Errno 98] Address already in use", OOM, FailureKind.PORT_TAKEN),
        (KV_SHORT, OOM, FailureKind.KV_CACHE_TOO_SMALL),
    ],
)
def test_of_several_causes_the_first_counts(earlier, later, kind):
    assert at_start(f"{in_core(earlier)}\n{in_core(later)}").kind is kind


@pytest.mark.parametrize(
    "quiet",
    [
        "WARNING 11-29 18:50:31 [parallel.py:746] Address already in use. Retrying with a new port.",
        "(APIServer pid=3) WARNING 11-29 18:50:31 [a.py:1] [Errno 98] EADDRINUSE: tried another port",
        "INFO 11-29 18:50:31 [a.py:1] DefaultCPUAllocator: can't allocate memory, using mmap",
        "(EngineCore pid=3) DEBUG 11-29 18:50:31 [a.py:1] CUDA out of memory, trying a smaller batch",
        "INFO:     No available memory for the cache blocks was said by an earlier engine",
    ],
)
def test_what_was_got_over_is_no_cause(quiet):
    assert at_start(quiet).kind is FailureKind.UNKNOWN
    assert at_start(f"{quiet}\n{in_core(KV_SHORT)}").kind is FailureKind.KV_CACHE_TOO_SMALL


@pytest.mark.parametrize(
    "text",
    [
        "gcc: error: unrecognized command-line option '-mavx9'",
        "gcc: error: argument to '-O' should be a non-negative integer",
        "/src/kernel.cpp:12:3: error: argument of type 'int' is incompatible",
        "ValueError: 3 validation errors for ChatCompletionRequest",
    ],
)
def test_what_only_looks_alike_stays_unknown(text):
    assert at_start(text).kind is FailureKind.UNKNOWN


@pytest.mark.parametrize("stage", [Stage.WARMING_UP, Stage.MEASURING])
@pytest.mark.parametrize("text", ["api_server.py: error: unrecognized arguments: --x", KV_SHORT, SEQS_ABOVE_BATCH])
def test_an_engine_that_was_ready_has_not_refused_its_settings(stage, text):
    assert classify(text, stage=stage, exit_code=0).kind is FailureKind.UNKNOWN


def test_a_death_in_service_names_its_cause():
    core = "(EngineCore pid=12) ERROR 11-29 18:50:31 [core.py:1510] "
    log = "\n".join(
        [
            "(APIServer pid=9) ERROR 11-29 18:50:30 [serving.py:1] ValueError: one request was too long",
            core + "EngineCore encountered a fatal error.",
            core + "Traceback (most recent call last):",
            core + '  File "/x/core.py", line 9, in step',
            core + "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "(APIServer pid=9) ERROR 11-29 18:50:31 [async_llm.py:906] "
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).",
        ]
    )
    failure = classify(log, stage=Stage.MEASURING, exit_code=0)
    cause = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    assert failure.kind is FailureKind.ENGINE_CRASH
    assert failure.detail == f"EngineCore died: {cause}"
    assert failure.evidence[0] == cause


def test_oom_in_service():
    log = in_core(OOM).replace("failed to start", "encountered a fatal error")
    assert classify(log, stage=Stage.MEASURING, exit_code=0).kind is FailureKind.OUT_OF_MEMORY


def test_an_unknown_exception_of_a_worker_is_named_without_the_wrapper():
    wrapped = (
        "RuntimeError: Worker failed with error 'Odd shape (3, 5)', please check the stack trace above for the root"
    )
    failure = at_start(in_core(wrapped))
    assert failure.kind is FailureKind.UNKNOWN
    assert failure.detail == "the engine ended with Odd shape (3, 5)"
    assert failure.retryable


def test_unknown_text_keeps_its_last_telling_lines():
    lines = [f"(Worker pid=7) INFO 11-29 18:50:31 [a.py:1] line {number}" for number in range(20)]
    frames = [
        "Traceback (most recent call last):",
        '  File "x.py", line 3, in f',
        "    return 1 / 0",
        "           ~~^~~",
        "",
    ]
    failure = at_start("\n".join([*lines, *frames, "weird.Thing happened"]), exit_code=3)
    assert (failure.kind, failure.blame, failure.exit_code) == (FailureKind.UNKNOWN, Blame.CONFIG, 3)
    assert failure.evidence == ("line 16", "line 17", "line 18", "line 19", "weird.Thing happened")


def test_an_empty_log():
    failure = at_start("", exit_code=None)
    assert (failure.kind, failure.evidence, failure.violation) == (FailureKind.UNKNOWN, (), None)


def test_evidence_is_bounded():
    failure = at_start(f"ValueError: World size (9) is larger than the number of available GPUs {'x' * 5000}")
    assert [len(line) for line in failure.evidence] == [400]
    assert len(failure.detail) < 500


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        (KV_SHORT, math.log(0.5 / 0.36)),
        (KV_SHORT.replace("0.36", "0.5"), 0.01),
        (KV_SHORT.replace("0.36", "0.0"), NO_POOL),
        (KV_NEGATIVE, NO_POOL + math.log(0.71 / 0.57)),
        (KV_NEGATIVE.replace("-0.14", "0.0"), NO_POOL),
        (KV_NEGATIVE.replace("-0.14/0.57", "-0.7/0.0"), NO_POOL + math.log(71)),
        ("ValueError: No available memory for the cache blocks.", NO_POOL),
        (KV_NEGATIVE.replace("(-0.14/0.57 GiB)", "(8.0 GiB)"), math.log(8.0 / 5.6)),
        (OOM, None),
    ],
)
def test_violation_numbers(text, violation):
    assert at_start(in_core(text)).violation == (None if violation is None else pytest.approx(violation))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        (
            KV_SHORT,
            {
                "max_model_len": 16384,
                "needed_gib": 0.5,
                "available_gib": 0.36,
                "short_gib": 0.14,
                "estimated_max_model_len": 11648,
            },
        ),
        (
            KV_SHORT.partition(" Based on")[0],
            {"max_model_len": 16384, "needed_gib": 0.5, "available_gib": 0.36, "short_gib": 0.14},
        ),
        (KV_TOKENS_SHORT, {"max_model_len": 4096, "kv_cache_tokens": 3664}),
        (KV_NEGATIVE, {"left_for_kv_gib": -0.14, "engine_memory_gib": 0.57}),
        (GPU_BUSY, {"available_gib": 20.1, "total_gib": 79.1, "needed_gib": 72.77, "short_gib": 52.67}),
        (SEQS_ABOVE_BATCH, {"max_num_batched_tokens": 32, "max_num_seqs": 64}),
        (
            "ValueError: max_num_batched_tokens (512) is smaller than max_model_len (4096). This effectively",
            {"max_num_batched_tokens": 512, "max_model_len": 4096},
        ),
        (
            "ValueError: World size (8) is larger than the number of available GPUs (1) in this node.",
            {"world_size": 8, "gpus": 1},
        ),
        (OOM, {"needed_gib": 2.0, "available_gib": 1.5, "total_gib": 79.1, "short_gib": 0.5}),
        (
            OOM.replace("2.00 GiB", "512.00 MiB").replace("1.50 GiB is free", "256.00 MiB is free"),
            {"needed_gib": 0.5, "available_gib": 0.25, "total_gib": 79.1, "short_gib": 0.25},
        ),
        ("RuntimeError: HIP out of memory.", {}),
        ("api_server.py: error: unrecognized arguments: --bogus 64", {}),
    ],
)
@pytest.mark.parametrize("wrap", [str, in_core])
def test_numbers_are_taken_out_of_the_text(text, facts, wrap):
    assert at_start(wrap(text)).facts == pytest.approx(facts)


def test_a_setting_that_asks_for_more_than_an_empty_card_gives_is_not_the_hosts_fault():
    failure = at_start(in_core(EMPTY_CARD))
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.OUT_OF_MEMORY, Blame.CONFIG, False)
    assert failure.violation == 0.01, "the log shows 0.1 GiB"
    assert failure.facts["short_gib"] == pytest.approx(0.1)


def test_a_context_beyond_the_pool_is_graded():
    failure = at_start(KV_TOKENS_SHORT)
    assert failure.kind is FailureKind.KV_CACHE_TOO_SMALL
    assert failure.violation == pytest.approx(math.log(4096 / 3664))


INFO = "(EngineCore pid=12) INFO 11-29 18:50:30 [x.py:1] "
REACHED = {
    None: "Initializing a V1 LLM engine",
    MemoryPhase.WEIGHTS: "Starting to load model /models/m...",
    MemoryPhase.PROFILING: "Model loading took 28.5 GiB memory and 9.1 seconds",
    MemoryPhase.KV_CACHE: "Available KV cache memory: 30.1 GiB",
    MemoryPhase.GRAPH_CAPTURE: "GPU KV cache size: 164,352 tokens, Maximum concurrency for 4,096 tokens: 40.12x",
}
FRAMES = {
    MemoryPhase.WEIGHTS: "load_model",
    MemoryPhase.PROFILING: "profile_run",
    MemoryPhase.KV_CACHE: "initialize_kv_cache",
    MemoryPhase.GRAPH_CAPTURE: "capture_model",
}


@pytest.mark.parametrize("phase", REACHED)
def test_what_needed_the_memory_is_told_from_how_far_the_start_had_come(phase):
    so_far = list(REACHED)[: list(REACHED).index(phase) + 1]
    log = "\n".join(
        [*(INFO + REACHED[step] for step in so_far), in_core(OOM), INFO + "Available KV cache memory: 1 GiB"]
    )
    assert at_start(log).phase is phase


@pytest.mark.parametrize("phase", FRAMES)
def test_the_frames_of_the_failure_tell_it_better(phase):
    frame = f'ERROR 11-29 18:50:31 [core.py:1]   File "/x/gpu_worker.py", line 3, in {FRAMES[phase]}'
    log = "\n".join([INFO + REACHED[None], INFO + REACHED[MemoryPhase.WEIGHTS], frame, in_core(OOM)])
    assert at_start(log).phase is phase


@pytest.mark.parametrize("stage", [Stage.WARMING_UP, Stage.MEASURING])
def test_memory_that_runs_out_after_the_start_ran_out_while_serving(stage):
    log = "\n".join([INFO + REACHED[MemoryPhase.GRAPH_CAPTURE], in_core(OOM)])
    assert classify(log, stage=stage, exit_code=0).phase is MemoryPhase.SERVING


def test_other_failures_have_no_phase():
    assert at_start(in_core(KV_SHORT)).phase is None


@pytest.mark.parametrize(("exit_code", "name"), [(-11, "SIGSEGV"), (-6, "SIGABRT"), (-60, "signal 60")])
def test_an_engine_that_falls_by_itself_is_the_settings_fault(exit_code, name):
    failure = at_start(INFO + "Loading weights", exit_code=exit_code)
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.ENGINE_CRASH, Blame.CONFIG, True)
    assert name in failure.detail
    assert failure.evidence == ("Loading weights",)


FAILED_REQUEST = "ERROR 11-29 18:50:31 [serving.py:1] ValueError: a request that was refused long ago"


@pytest.mark.parametrize(("exit_code", "name"), [(-9, "SIGKILL"), (-15, "SIGTERM")])
@pytest.mark.parametrize("log", [INFO + "Loading weights", FAILED_REQUEST])
def test_an_engine_that_somebody_else_killed_is_the_hosts_fault(exit_code, name, log):
    failure = at_start(log, exit_code=exit_code)
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.ENGINE_CRASH, Blame.HOST, True)
    assert f"killed by {name}" in failure.detail


def test_a_log_that_tells_why_wins_over_the_signal():
    assert at_start(in_core(KV_SHORT), exit_code=-9).kind is FailureKind.KV_CACHE_TOO_SMALL
    fell = classify("EngineCore encountered a fatal error.", stage=Stage.MEASURING, exit_code=-9)
    assert fell.blame is Blame.CONFIG


ALONE = MemoryKill(kills=1, left_bytes=23 * 2**30, usual_bytes=24 * 2**30)
AMONG_OTHERS = MemoryKill(kills=2, left_bytes=6 * 2**30, usual_bytes=24 * 2**30)
RESET = "ERROR 11-29 18:50:31 [x.py:1] ConnectionResetError: [Errno 104] Connection reset by peer"


@pytest.mark.parametrize(("kill", "blame"), [(ALONE, Blame.CONFIG), (AMONG_OTHERS, Blame.HOST)])
@pytest.mark.parametrize(
    ("log", "exit_code"), [(INFO + "Loading weights", -9), (WORKER_DIED, 0), (RESET, 1), ("", None)]
)
def test_who_had_the_memory_is_to_blame_when_the_kernel_kills(kill, blame, log, exit_code):
    failure = classify(log, stage=Stage.MEASURING, exit_code=exit_code, memory_kill=kill)
    assert (failure.kind, failure.blame, failure.retryable) == (FailureKind.OUT_OF_MEMORY, blame, True)
    assert failure.phase is MemoryPhase.SERVING
    assert failure.evidence[0] == f"the kernel's count of such kills rose by {kill.kills}"
    assert failure.facts == {"left_gib": kill.left_bytes / 2**30, "usual_gib": 24.0}
    assert "host memory" in failure.detail


def test_what_the_log_knows_is_not_the_kernels_doing():
    failure = classify(in_core(KV_SHORT), stage=Stage.LAUNCHING, exit_code=1, memory_kill=AMONG_OTHERS)
    assert failure.kind is FailureKind.KV_CACHE_TOO_SMALL


def test_a_core_that_vanishes_is_told_from_a_warning_when_nothing_else_says_why():
    quiet = "(APIServer pid=3) WARNING 11-29 18:50:31 [core_client.py:817] [shutdown] MPClient: engine core exited "
    failure = classify(quiet + "unexpectedly; starting cleanup", stage=Stage.MEASURING, exit_code=0)
    assert (failure.kind, failure.retryable) == (FailureKind.ENGINE_CRASH, True)
    known = classify(f"{quiet}unexpectedly\n{in_core(OOM)}", stage=Stage.MEASURING, exit_code=0)
    assert known.kind is FailureKind.OUT_OF_MEMORY


def test_answers_that_went_well_are_no_last_words():
    served = [f'INFO:     127.0.0.1:4{n} - "POST /v1/completions HTTP/1.1" 200 OK' for n in range(9)]
    refused = 'INFO:     127.0.0.1:57 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error'
    log = "\n".join(["Loading weights", refused, *served])
    assert at_start(log).evidence == ("Loading weights", refused.removeprefix("INFO:     "))


@given(st.floats(0.01, 40), st.floats(-2, 40), st.floats(-2, 40))
def test_less_memory_is_never_a_smaller_violation(needed, some, other):
    def violation(available: float) -> float:
        if available <= 0:
            text = KV_NEGATIVE.replace("-0.14/0.57", f"{available:.2f}/0.57").replace("(0.00/", "(0.0/")
        else:
            text = KV_SHORT.replace("0.5 GiB", f"{needed:.2f} GiB").replace("0.36", f"{available:.2f}")
        found = at_start(text).violation
        assert found is not None
        assert found > 0
        return found

    less, more = sorted((some, other))
    assert violation(less) >= violation(more)


@given(st.text(max_size=300), st.sampled_from(list(Stage)))
def test_any_text_gets_a_failure(text, stage):
    failure = classify(text, stage=stage, exit_code=None)
    assert failure.detail
    assert all(line.strip() and len(line) <= 400 for line in failure.evidence)


def test_bytes_that_are_no_utf8_do_not_hide_the_cause():
    log = (b"\xff\xfe\x00 garbage \x80\n" + KV_SHORT.encode() + b"\n\xc3\x28").decode("utf-8", errors="replace")
    assert at_start(log).kind is FailureKind.KV_CACHE_TOO_SMALL


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) ERROR 11-29 18:50:31 [a.py:1] request cmpl-1 failed: nothing to see in (this) line",
        "Free memory on device " + "(1.0/2.0 GiB) " * 30,
        "a" * 20_000,
        "error: argument " * 20,
        "1 validation error for Config",
    ],
)
def test_a_megabyte_is_read_at_once(line):
    log = f"{line}\n" * (1_000_000 // (len(line) + 1))
    begun = time.process_time()
    at_start(log)
    assert time.process_time() - begun < 10.0
