"""`run --dry-run`: what a study would do first, and nothing done."""

from __future__ import annotations

import pytest

from optimizer.app.knowledge import study_knowledge
from optimizer.app.plan import SHOWN_PROPOSALS, describe_workload, plan_study
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.search import make_search
from optimizer.core.errors import InputError
from optimizer.core.trial import TrialRole
from optimizer.storage import open_store

pytestmark = pytest.mark.usefixtures("tmp_home")
"""A plan knows the study that it would go on with, and a checkout in which somebody ran `make run` has one."""
REQUEST = RunRequest(space="tiny-cpu", engine="simulated", seed=5)


def test_the_proposals_are_those_that_the_study_makes(tmp_path):
    config = study_config(REQUEST)
    settings = settings_of(config)
    known = study_knowledge(config, settings, None)
    with (
        open_store(str(tmp_path / "s.db")) as store,
        make_search(config, settings, store, knowledge=known) as search,
    ):
        asked = [search.ask() for _ in range(SHOWN_PROPOSALS)]
    planned = plan_study(REQUEST).proposals
    assert [(trial.number, trial.params) for trial in planned] == asked
    roles = [trial.role for trial in planned]
    assert roles == [TrialRole.BASELINE, TrialRole.DEFAULT, *[TrialRole.SEARCH] * (SHOWN_PROPOSALS - 2)]


def test_nothing_is_written(tmp_path, tmp_home):
    plan_study(RunRequest(space="tiny-cpu", storage=str(tmp_path / "not" / "there.db")))
    assert list(tmp_home.iterdir()) == []
    assert [entry.name for entry in tmp_path.iterdir()] == [tmp_home.name]


def test_no_vllm_is_needed(monkeypatch):
    monkeypatch.setenv("PATH", "")
    plan = plan_study(RunRequest(space="tiny-cpu", engine_python="/no/such/python"))
    assert plan.proposals


def test_each_proposal_has_the_command_that_serves_it():
    baseline, defaults, search = plan_study(REQUEST).proposals[:3]
    assert "--max-num-seqs" in baseline.argv
    assert baseline.argv[baseline.argv.index("--max-num-seqs") + 1] == "16"
    assert "--max-num-seqs" not in defaults.argv, "vLLM's own default holds"
    assert "--gpu-memory-utilization" in defaults.argv
    assert search.argv[search.argv.index("--max-num-seqs") + 1] == str(search.params["max-num-seqs"])


def test_no_more_proposals_than_trials():
    assert len(plan_study(RunRequest(space="tiny-cpu", trials=3)).proposals) == 3


def test_the_study_in_words():
    plan = plan_study(
        RunRequest(space="tiny-cpu", trials=10, slos=("p99_ttft_ms=250",), objective="request_throughput")
    )
    assert (plan.space_name, plan.study, plan.trials) == ("tiny-cpu", "tiny-cpu", 10)
    assert ("max-num-seqs", "4..128 (log)") in plan.parameters
    assert plan.objective == "highest requests_per_s"
    assert plan.slos == ("p99_ttft_ms<=250",)
    assert plan.time.trials == 10
    assert plan.time.total.low_s == 10 * plan.time.trial.low_s > 0
    assert any("GiB" in note for note in plan.notes), "says what 'defaults' means"
    assert plan.workload.startswith("tiny-shared-prefix: 48 requests in flight; 4 shared prefixes of 192 tokens")


def test_a_study_of_capacities_says_that_a_trial_is_many_loads():
    def told(objective: str) -> bool:
        plan = plan_study(RunRequest(space="tiny-cpu", slos=("p99_ttft_ms=250",), objective=objective))
        return any("one engine is loaded at up to " in note for note in plan.notes)

    assert told("capacity")
    assert not told("goodput")


def test_a_cold_start_takes_longer():
    cold = plan_study(RunRequest(space="tiny-cpu", baseline="VLLM_LOGGING_LEVEL=DEBUG vllm serve tiny-kv"))
    assert cold.time.trial.low_s > plan_study(RunRequest(space="tiny-cpu")).time.trial.low_s


@pytest.mark.parametrize(("prefixes", "words"), [(1, "1 shared prefix of 192"), (4, "4 shared prefixes of 192")])
def test_one_prefix_is_no_plural(prefixes, words):
    workload = study_config(REQUEST).workload
    sharing = workload.shared_prefix.model_copy(update={"prefixes": prefixes})
    assert words in describe_workload(workload.model_copy(update={"shared_prefix": sharing}))
    assert "prefix" not in describe_workload(workload.model_copy(update={"shared_prefix": None, "name": "w"}))


@pytest.fixture
def contradictory(tmp_path, project_root) -> RunRequest:
    """tiny-cpu with two rules that cannot both hold."""
    text = (project_root / "search_spaces" / "builtin" / "tiny-cpu.yaml").read_text()
    file = tmp_path / "contradictory.yaml"
    file.write_text(text + '\nrules: ["max-num-seqs <= block-size", "max-num-seqs > block-size"]\n')
    return RunRequest(space=str(file), storage=str(tmp_path / "s.db"))


def test_rules_that_leave_no_setting_are_refused(contradictory):
    with pytest.raises(InputError) as caught:
        plan_study(contradictory)
    assert "max-num-seqs <= block-size" in caught.value.message
    assert "max-num-seqs > block-size" in caught.value.message


def test_the_sampler_is_told_and_why_each_trial_would_be_tried():
    plan = plan_study(RunRequest(space="tiny-cpu", engine="simulated", sampler="random"))
    assert plan.sampler == "random: settings at random"
    assert [trial.notes for trial in plan.proposals] == [(), (), *[("proposed by random",)] * 3]
    modelled = plan_study(RunRequest(space="tiny-cpu", engine="simulated", sampler="tpe"))
    assert modelled.proposals[2].notes[0].startswith("first trial 1 of ")


def test_a_sampler_that_foresees_nothing_cannot_tell_when_to_stop():
    with pytest.raises(InputError, match="--stop-below-gain: the sampler random does not say") as caught:
        plan_study(RunRequest(space="tiny-cpu", sampler="random", least_gain="1%"))
    assert caught.value.exit_code == 2
    assert plan_study(RunRequest(space="tiny-cpu", sampler="gp", least_gain="1%")).trials
