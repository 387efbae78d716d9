from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.errors import InputError, NothingFeasible
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import TrialRecord
from optimizer.core.trial import TrialRole, TrialState
from optimizer.report.export import choose_trial, command_argv, command_text, improvement, launch_flags


def test_the_best_feasible_trial_is_chosen(sample, minimising_sample):
    for study_sample in (sample, minimising_sample):
        assert choose_trial(study_sample.study, study_sample.trials, None).number == 2


def test_what_is_recommended_is_exported_in_place_of_the_luckiest_run(sample):
    found = Recommendation(0, {}, 0.97, 400.0, 390.0, 410.0, 2, "")
    assert choose_trial(sample.study, sample.trials, None, found).number == 0
    assert choose_trial(sample.study, sample.trials, 3, found).number == 3


def test_nothing_feasible_is_an_error_of_its_own(infeasible_sample):
    with pytest.raises(NothingFeasible, match="no feasible trial"):
        choose_trial(infeasible_sample.study, infeasible_sample.trials, None)


def test_a_measured_trial_may_be_chosen_though_it_is_infeasible(sample):
    assert choose_trial(sample.study, sample.trials, 3).state is TrialState.INFEASIBLE


@pytest.mark.parametrize(
    ("number", "message"), [(4, "failed and has no measurement"), (5, "rejected"), (99, "has no such trial")]
)
def test_what_was_never_measured_is_not_exported(sample, number, message):
    with pytest.raises(InputError, match=message):
        choose_trial(sample.study, sample.trials, number)


def test_flags_hold_fixed_and_searched_ones_but_no_dummy_weights_and_no_secret():
    flags: dict[str, FlagValue] = {
        "load-format": "dummy",
        "max-num-seqs": 64,
        "enable-prefix-caching": True,
        "hf-token": "planted",
    }
    assert launch_flags(EngineConfig("vllm", "m", flags)) == ["--enable-prefix-caching", "--max-num-seqs", "64"]
    assert launch_flags(EngineConfig("vllm", "m", {"load-format": "runai_streamer"})) == [
        "--load-format",
        "runai_streamer",
    ]


def test_the_command_is_shell_text_for_the_engine_that_was_measured(sample):
    best = sample.trials[2]
    text = command_text(best, best.config)
    words = shlex.split(text.replace("\\\n", " "))
    assert words == ["VLLM_CPU_KVCACHE_SPACE=1", *command_argv(best, best.config)]
    assert words[1:6] == [
        "/opt/engine env/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "/models/tiny kv",
    ]
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
    assert words[words.index("--load-format") + 1] == "dummy"
    draft = words[words.index("--speculative-config") + 1]
    assert json.loads(draft) == {"method": "ngram", "num_speculative_tokens": 4}
    assert "planted" not in text
    assert [line for line in text.splitlines()[:-1] if not line.endswith(" \\")] == []


def test_every_line_of_the_command_holds_one_option_with_its_values():
    config = EngineConfig(
        "vllm", "m", {"cudagraph-capture-sizes": [1, 2, 4], "enforce-eager": False, "threshold": -0.5}
    )
    lines = command_text(_trial_of(config), config).splitlines()
    assert "  --cudagraph-capture-sizes 1 2 4 \\" in lines
    assert "  --no-enforce-eager \\" in lines
    assert "  --threshold -0.5 \\" in lines
    assert lines[0].startswith("python3 -m vllm.")


def test_another_engine_is_started_by_its_own_program(sample):
    config = EngineConfig("simulated", "m", {"max-num-seqs": 64})
    attempt = replace(sample.trials[2].attempts[0], argv=("python", "-m", "sim", "--port", "1234", "--key", "planted"))
    argv = command_argv(replace(sample.trials[2], attempts=(attempt,)), config)
    assert argv == [
        "python", "-m", "sim", "--model", "m", "--max-num-seqs", "64", "--host", "127.0.0.1", "--port", "8000"
    ]  # fmt: skip


def test_several_api_servers_are_started_by_vllm_serve():
    config = EngineConfig("vllm", "org/m", {"api-server-count": 4, "max-num-seqs": 8})
    lines = command_text(_trial_of(config), config).splitlines()
    assert lines[:3] == [
        "python3 -m vllm.entrypoints.cli.main serve org/m \\",
        "  --api-server-count 4 \\",
        "  --max-num-seqs 8 \\",
    ]


def test_improvement_is_above_one_for_the_better_in_either_direction(sample, minimising_sample):
    for study_sample, ratio in ((sample, 512.34 / 400), (minimising_sample, 200 / 150)):
        best = study_sample.trials[2]
        assert improvement(study_sample.study, best, study_sample.trials) == pytest.approx(ratio)


def test_without_a_baseline_there_is_no_improvement(sample):
    assert improvement(sample.study, sample.trials[2], sample.trials[2:]) is None


def _trial_of(config):
    return TrialRecord("s", 2, TrialRole.SEARCH, TrialState.FEASIBLE, config=config)
