"""What a search begins with, from the configuration of a study."""

from __future__ import annotations

from optimizer.app.knowledge import study_knowledge
from optimizer.app.memory import study_memory
from optimizer.app.request import RunRequest, settings_of, study_config
from optimizer.config import StudyConfig
from optimizer.core.record import TrialRecord
from tests.greybox_on_grid import measured_runs


def _tiny() -> StudyConfig:
    return study_config(RunRequest(space="tiny-cpu"))


def test_a_study_of_a_known_model_begins_with_four_settings_that_may_start():
    config = _tiny()
    settings = settings_of(config)
    prescreen = study_memory(config, settings, lambda: ()).prescreen
    assert prescreen is not None
    known = study_knowledge(config, settings, prescreen)
    assert len(known.first) == 4
    misfit = prescreen.opened()
    for setting in known.first:
        assert settings.broken_rules(setting.params) == ()
        assert misfit(setting.params) is None
    assert known.memory_of is not None
    prediction = known.memory_of(dict(known.first[0].params))
    assert prediction is not None
    assert prediction.pool_tokens.mid > 10_000


def test_the_same_study_begins_with_the_same_settings():
    config = _tiny()
    settings = settings_of(config)
    prescreen = study_memory(config, settings, lambda: ()).prescreen
    one, other = (study_knowledge(config, settings, prescreen) for _ in range(2))
    assert one.first == other.first


def test_without_an_account_traffic_alone_says_where_to_begin():
    config = _tiny()
    known = study_knowledge(config, settings_of(config), None)
    assert known.first
    assert known.memory_of is None
    for setting in known.first:
        assert setting.params["max-model-len"] == 1024
        assert setting.params["max-num-seqs"] == 48


def test_the_prior_reads_the_study_s_own_trials():
    config = _tiny()
    known = study_knowledge(config, settings_of(config), None)
    fitted = known.prior.fitted(measured_runs()[:6])
    assert fitted is not None
    assert set(fitted.predict([dict(known.first[0].params)])) >= {"value", "p95_e2e_ms"}


def test_the_record_is_read_once_an_ask_however_many_settings_are_foretold():
    config = _tiny()
    settings = settings_of(config)
    reads: list[int] = []

    def records() -> tuple[TrialRecord, ...]:
        reads.append(1)
        return ()

    prescreen = study_memory(config, settings, records).prescreen
    assert prescreen is not None
    known = study_knowledge(config, settings, prescreen)
    assert known.memory_of is not None
    prescreen.opened()
    before = len(reads)
    for setting in known.first:
        assert known.memory_of(dict(setting.params)) == prescreen.foretold(setting.params)
    assert len(reads) == before
