"""The evaluator that comes with the project keeps to the page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from optimizer.config import load_space
from optimizer.core.failure import Blame, FailureKind
from optimizer.core.reported import ReportedMetrics
from optimizer.tuning.evaluator_protocol import EvaluatorRequest, read_answer

WANTED = ("output_tokens_per_s", "p99_e2e_ms", "p99_ttft_ms")


@pytest.fixture
def ask(project_root):
    """Runs it as `run` does; gives its answer."""

    def asking(content_seed: int = 1, **flags):
        request = EvaluatorRequest(
            trial=2,
            params={},
            flags=flags,
            workload={},
            seed=0,
            content_seed=content_seed,
            study="s",
            attempt=1,
            role="search",
            model="m",
            env={},
            argv=[],
            wanted=list(WANTED),
        )
        script = project_root / "examples" / "evaluator_simulated.py"
        words = [sys.executable, "-I", "-S", str(script)]
        done = subprocess.run(words, input=request.model_dump_json(), capture_output=True, text=True, check=True)
        return read_answer(done.stdout.splitlines()[-1], WANTED)

    return asking


def test_it_measures_what_the_example_space_needs(ask, project_root):
    space = load_space(str(project_root / "examples" / "chat-8b.yaml"))
    assert {slo.name for slo in space.parsed_slos()} <= {*WANTED}
    answer = ask(**{"max-num-seqs": 64})
    assert isinstance(answer, ReportedMetrics)
    assert set(answer.standard_errors) >= {*WANTED}
    assert answer == ask(**{"max-num-seqs": 64})
    assert answer != ask(2, **{"max-num-seqs": 64})


def test_a_context_that_does_not_fit_is_the_settings_fault(ask):
    failure = ask(**{"max-model-len": 100_000, "gpu-memory-utilization": 0.9})
    assert (failure.kind, failure.blame) == (FailureKind.KV_CACHE_TOO_SMALL, Blame.CONFIG)
    assert failure.violation == pytest.approx(0.693, abs=1e-3)
    assert "100000 tokens" in failure.detail
