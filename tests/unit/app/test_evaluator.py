"""What a study of an external evaluator does without: an engine, its flags, its memory, and the model's files."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

from optimizer.app.energy import check_energy
from optimizer.app.engine_choice import SOMEBODY_ELSES, choose_engine
from optimizer.app.evaluator import wanted_metrics
from optimizer.app.flags import checked_config
from optimizer.app.gpus import StudyGpus
from optimizer.app.memory import study_memory
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.app.run_study import MEASUREMENT_PROTOCOL, engine_of, study_identity
from optimizer.config.recorded import recorded_config
from optimizer.config.study_time import estimate_study_time
from optimizer.core.errors import InputError
from optimizer.core.record import AttemptRecord, StageTiming, StudyRecord, TrialRecord
from optimizer.core.trial import Stage, TrialRole, TrialState
from optimizer.tuning.evaluator_protocol import EVALUATOR_PROTOCOL
from tests.unit.conftest import OWNER, START

COMMAND = f"{sys.executable} my_evaluator.py"


def request(**options) -> RunRequest:
    return RunRequest(**({"space": "tiny-cpu", "evaluator": COMMAND} | options))


def config_with(**options):
    return study_config(request(**options))


def test_the_engine_is_somebody_elses_and_nothing_is_kept_warm_or_pinned_for_it():
    config = config_with(evaluator_timeout_s=5.0)
    assert (config.engine.kind, config.engine.warm_start, config.engine.pin_cpus) == ("external", False, False)
    assert (config.evaluator.command, config.evaluator.timeout_s) == (COMMAND, 5.0)
    assert engine_of(config, None) is SOMEBODY_ELSES
    assert settings_of(config).resolve(TrialRole.DEFAULT, {}).config.engine == "external"
    assert study_memory(config, settings_of(config), lambda: ()).prescreen is None
    assert study_memory(config, settings_of(config), lambda: ()).notes == ()


def test_without_an_evaluator_nothing_can_measure_such_an_engine():
    with pytest.raises(InputError, match=r"engine\.kind is external") as caught:
        choose_engine("external", None)
    assert "--evaluator" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluator": "./missing"}, "there is no program './missing'"),
        ({"evaluator": ""}, "there is no command"),
        ({"engine": "simulated"}, "--engine and --evaluator are both given"),
        ({"port_range": (9000, 9100)}, "--port-range and --evaluator are both given"),
        ({"evaluator": None, "evaluator_timeout_s": 5.0}, "without --evaluator"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        config_with(**options)


def test_the_command_and_a_protocol_of_its_own_are_part_of_the_identity():
    config, plain = config_with(), study_config(RunRequest(space="tiny-cpu"))
    identity = study_identity(config, SOMEBODY_ELSES, StudyGpus())
    assert (identity["evaluator"], identity["measurement_protocol"]) == (COMMAND, EVALUATOR_PROTOCOL)
    assert "evaluator" not in plain.identity()
    assert study_identity(plain, SOMEBODY_ELSES, StudyGpus())["measurement_protocol"] == MEASUREMENT_PROTOCOL
    assert config.identity() == config_with(evaluator_timeout_s=7.0).identity(), "the limit may be changed on resume"


@pytest.mark.parametrize("model", ["/models/llama", "./nowhere", "a/b/c", "org/name", "tiny-kv"])
def test_the_model_need_not_be_here(model):
    config = config_with(model=model)
    assert config.model.target.endswith(model)
    if model.startswith(("/", ".")):
        with pytest.raises(InputError, match="no such directory"):
            study_config(RunRequest(space="tiny-cpu", model=model))


def test_the_record_gives_the_same_study_back():
    config = config_with(model="/models/llama", evaluator_timeout_s=5.0)
    record = StudyRecord("s", datetime.now(UTC), {}, config.as_dict(), "output_tokens_per_s", maximise=True)
    again = recorded_config(record)
    assert (again.evaluator, again.model) == (config.evaluator, config.model)
    assert again.identity() == config.identity()


def test_flags_are_not_checked_unless_a_vllm_is_named(monkeypatch):
    asked = []

    def choose(kind, python):
        asked.append((kind, python))
        return choose_engine("simulated", None)

    monkeypatch.setattr("optimizer.app.flags.choose_engine", choose)
    unknown = ("no-such-flag=1",)
    config = checked_config(request(set_flags=unknown), SOMEBODY_ELSES, notice=pytest.fail)
    assert config.fixed_flags["no-such-flag"] == 1
    assert asked == []
    with pytest.raises(InputError, match="no-such-flag"):
        checked_config(request(set_flags=unknown, engine_python="py"), SOMEBODY_ELSES, notice=lambda _: None)
    assert asked == [("vllm", "py")]


def test_energy_is_the_evaluators_to_measure(monkeypatch):
    monkeypatch.setattr("optimizer.app.energy.read_package_energy", lambda: pytest.fail("this host was asked"))
    check_energy(config_with(objective="tokens_per_joule"))


def test_what_it_must_report_is_the_objective_and_every_limit_once():
    config = config_with(objective="throughput", slos=("p97_e2e_ms=800", "p99_ttft<=1.1x"))
    assert wanted_metrics(config) == ("output_tokens_per_s", "p97_e2e_ms", "p99_ttft_ms")


def test_its_trials_tell_how_long_the_rest_takes():
    def trial(number: int) -> TrialRecord:
        stages = (StageTiming(Stage.MEASURING, START, 30.0), StageTiming(Stage.STOPPING, START, 0.1))
        attempt = AttemptRecord(1, OWNER, START, START + timedelta(seconds=30.1), "f", stages=stages)
        return TrialRecord("s", number, TrialRole.SEARCH, TrialState.FEASIBLE, attempts=(attempt,))

    config = config_with(trials=10)
    before = estimate_study_time(config)
    assert (before.timed, [part.name for part in before.parts]) == (0, ["evaluator"])
    after = estimate_study_time(config, [trial(number) for number in range(4)])
    assert (after.timed, after.trials) == (4, 6)
    assert after.total.low_s == pytest.approx(6 * 30.1)
