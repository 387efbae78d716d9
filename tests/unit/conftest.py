"""A small study with one trial of every kind, for whatever reads records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from optimizer.core.engine_config import EngineConfig, FlagValue, JsonValue
from optimizer.core.failure import Blame, Failure, FailureKind
from optimizer.core.record import (
    AttemptRecord,
    ProcessIdentity,
    StageTiming,
    StudyRecord,
    TrialRecord,
)
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.storage import StudyStore, open_store

START = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
OWNER = ProcessIdentity(host="bench-1", boot_id="b00t", pid=4242, start_ticks=99)
ENGINE_PYTHON = "/opt/engine env/bin/python"
BASELINE_FLAGS: dict[str, FlagValue] = {
    "load-format": "dummy",
    "max-model-len": 512,
    "max-num-seqs": 8,
    "block-size": 16,
}


@dataclass(frozen=True)
class StudySample:
    """A study and its trials, as storage returns them."""

    study: StudyRecord
    trials: list[TrialRecord]

    def only(self, *states: TrialState) -> list[TrialRecord]:
        return [trial for trial in self.trials if trial.state in states]


def make_study(name: str = "tiny-cpu", *, maximise: bool = True) -> StudyRecord:
    objective = "output_tokens_per_s" if maximise else "p99_ttft_ms"
    return StudyRecord(name, START, {}, {}, objective, maximise, versions={"vllm": "0.32.0"}, host={"cores": 2})


def make_config(**flags: FlagValue | None) -> EngineConfig:
    merged = {**BASELINE_FLAGS, **{name.replace("_", "-"): value for name, value in flags.items()}}
    kept = {name: value for name, value in merged.items() if value is not None}
    return EngineConfig("vllm", "/models/tiny kv", kept, {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_TOKEN": "hf_planted"})


def make_attempt(number: int = 1, *, seconds: float | None = 40.0, failure: Failure | None = None) -> AttemptRecord:
    spans = ((Stage.LAUNCHING, 20.0), (Stage.WARMING_UP, 4.0), (Stage.MEASURING, 15.0), (Stage.STOPPING, 1.0))
    stages = tuple(StageTiming(stage, START, length if seconds is not None else None) for stage, length in spans)
    argv = (ENGINE_PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", "nonce-planted")
    ended_at = None if seconds is None else START + timedelta(seconds=seconds)
    return AttemptRecord(number, OWNER, START, ended_at, f"/records/tiny-cpu/{number}", argv, stages, failure)


def make_score(study: StudyRecord, value: float, p99_e2e_ms: float, limit_ms: float = 800.0) -> Score:
    holds = p99_e2e_ms <= limit_ms
    verdict = Verdict.FEASIBLE if holds else Verdict.INFEASIBLE
    violation = math.log(p99_e2e_ms / limit_ms)
    limit = Constraint("p99_e2e_ms", limit_ms, p99_e2e_ms, p99_e2e_ms - 20, None, violation, verdict)
    return Score(study.objective, value, study.maximise, verdict, (limit,))


def make_measured(
    study: StudyRecord, number: int, role: TrialRole, value: float, p99_e2e_ms: float, **flags: FlagValue | None
) -> TrialRecord:
    score = make_score(study, value, p99_e2e_ms)
    metrics = {
        "output_tokens_per_s": value,
        "p99_e2e_ms": p99_e2e_ms,
        "p99_ttft_ms": p99_e2e_ms / 4,
        "p99_tpot_ms": 12.5,
        "p99_itl_ms": math.nan,
        "preemptions": 7.0,
        "prefix_cache_hit_rate": 0.25,
        "spec_acceptance_rate": None,
        study.objective: value,
    }
    state = TrialState.FEASIBLE if score.verdict is Verdict.FEASIBLE else TrialState.INFEASIBLE
    params = {name.replace("_", "-"): value for name, value in flags.items() if isinstance(value, bool | int | float)}
    config = make_config(**flags)
    return TrialRecord(study.name, number, role, state, params, config, metrics, score, attempts=(make_attempt(),))


def make_failed(study: StudyRecord, number: int) -> TrialRecord:
    failure = Failure(
        FailureKind.KV_CACHE_TOO_SMALL,
        Stage.LAUNCHING,
        Blame.CONFIG,
        "4096 tokens of context need 128 MiB of KV cache and there are 64",
        evidence=("ValueError: To serve at least one request", "with [brackets] and HF_TOKEN=hf_planted"),
        exit_code=1,
        violation=0.69,
    )
    attempts = (make_attempt(1, seconds=None), make_attempt(2, seconds=12.0, failure=failure))
    config = make_config(max_model_len=4096)
    return TrialRecord(
        study.name,
        number,
        TrialRole.SEARCH,
        TrialState.FAILED,
        {"max-model-len": 4096},
        config,
        failure=failure,
        attempts=attempts,
    )


def make_sample(name: str = "tiny-cpu", *, maximise: bool = True) -> StudySample:
    """Best is #2: #3 is better in value but breaks its limit; the others were never measured."""
    study = make_study(name, maximise=maximise)
    better, best, worse = (400.0, 512.34, 600.0) if maximise else (200.0, 150.0, 90.0)
    base = make_measured(study, 0, TrialRole.BASELINE, better, 700.0)
    default = make_measured(study, 1, TrialRole.DEFAULT, better * 1.05, 950.0, max_num_seqs=None, block_size=None)
    draft: dict[str, JsonValue] = {"method": "ngram", "num_speculative_tokens": 4}
    trials = [
        replace(base, notes=("--port 8000 was dropped",)),
        default,
        make_measured(study, 2, TrialRole.SEARCH, best, 712.0, max_num_seqs=64, speculative_config=draft),
        make_measured(study, 3, TrialRole.SEARCH, worse, 1200.0, max_num_seqs=256, enable_prefix_caching=False),
        make_failed(study, 4),
        TrialRecord(study.name, 5, TrialRole.SEARCH, TrialState.REJECTED, {"max-num-seqs": 2048}),
        TrialRecord(
            study.name,
            6,
            TrialRole.SEARCH,
            TrialState.INTERRUPTED,
            {"max-num-seqs": 16},
            make_config(max_num_seqs=16),
            attempts=(make_attempt(seconds=None),),
        ),
        TrialRecord(study.name, 7, TrialRole.SEARCH, TrialState.RUNNING, {"max-num-seqs": 32}),
    ]
    return StudySample(study, trials)


def record(store: StudyStore, sample: StudySample) -> None:
    """Writes a study the way a run does: each trial first running, then with its attempts, then as it ended."""
    store.create_study(sample.study)
    for trial in sample.trials:
        store.put_trial(replace(trial, state=TrialState.RUNNING, attempts=()))
        for attempt in trial.attempts:
            store.begin_attempt(trial.study, trial.number, attempt)
        store.put_trial(trial)


@pytest.fixture
def history(tmp_path: Path, sample: StudySample) -> str:
    """A database with one study; what `--storage` is given."""
    return _write_history(tmp_path / "studies.db", sample)


@pytest.fixture
def history_of_two(tmp_path: Path, sample: StudySample, other_sample: StudySample) -> str:
    """A database with two studies."""
    return _write_history(tmp_path / "two.db", sample, other_sample)


@pytest.fixture
def infeasible_history(tmp_path: Path, infeasible_sample: StudySample) -> str:
    """A database whose only study has nothing feasible."""
    return _write_history(tmp_path / "infeasible.db", infeasible_sample)


def _write_history(file: Path, *samples: StudySample) -> str:
    with open_store(str(file)) as store:
        for sample in samples:
            record(store, sample)
    return str(file)


@pytest.fixture
def sample() -> StudySample:
    """A study that maximises throughput."""
    return make_sample()


@pytest.fixture
def minimising_sample() -> StudySample:
    """A study that minimises TTFT."""
    return make_sample("latency", maximise=False)


@pytest.fixture
def other_sample() -> StudySample:
    """A second study, for a history that holds two."""
    return make_sample("other")


@pytest.fixture
def infeasible_sample(sample: StudySample) -> StudySample:
    """Only the trials that did not meet the limits."""
    return StudySample(sample.study, sample.only(TrialState.INFEASIBLE, TrialState.FAILED, TrialState.REJECTED))
