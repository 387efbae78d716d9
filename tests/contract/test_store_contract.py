"""What a study store must do on every database: the same suite on SQLite and on PostgreSQL."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core.engine_config import EngineConfig, canonical_flag
from optimizer.core.errors import AutotuneError, InputError
from optimizer.core.failure import Blame, Failure, FailureKind, MemoryPhase
from optimizer.core.recommendation import Recommendation
from optimizer.core.record import AttemptRecord, ProcessIdentity, StageTiming, StudyRecord, TrialRecord
from optimizer.core.scoring import Constraint, Score, Verdict
from optimizer.core.trial import TRANSITIONS, Stage, TrialRole, TrialState
from optimizer.storage import StudyStore, open_store

DATABASES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OWNER = ProcessIdentity(host="box", boot_id="b1", pid=41, start_ticks=990)
OTHER = ProcessIdentity(host="box", boot_id="b1", pid=42, start_ticks=991)
FINAL_STATES = sorted(state for state in TrialState if state.is_final)

_names = itertools.count()


@pytest.fixture(scope="module", params=DATABASES)
def database(request, tmp_path_factory) -> Iterator[str]:
    """URL of an empty database of each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('contract')}/studies.db"
        return
    schema = f"autotune_test_{uuid.uuid4().hex}"
    url = sa.make_url(request.getfixturevalue("postgres_url")).set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.schema.CreateSchema(schema))
    yield url.update_query_dict({"options": f"-csearch_path={schema}"}).render_as_string(hide_password=False)
    with engine.begin() as connection:
        connection.execute(sa.schema.DropSchema(schema, cascade=True))
    engine.dispose()


@pytest.fixture(scope="module")
def store(database) -> Iterator[StudyStore]:
    with open_store(database) as opened:
        yield opened


def new_study(store: StudyStore) -> str:
    study = StudyRecord(f"study-{next(_names)}", START, {"space": "tiny"}, {}, "output_tokens_per_s", maximise=True)
    store.create_study(study)
    return study.name


def trial(study: str, number: int = 0, state: TrialState = TrialState.RUNNING) -> TrialRecord:
    return TrialRecord(study, number, TrialRole.SEARCH, state)


def attempt(number: int = 1, owner: ProcessIdentity = OWNER) -> AttemptRecord:
    return AttemptRecord(number, owner, START, None, f"/data/attempt-{number}")


def exact(value: object) -> object:
    """A value that is equal only to one of the same types, key order and NaNs, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return (type(value).__name__, *(exact(getattr(value, field.name)) for field in fields))
    if hasattr(value, "items"):
        return [(key, exact(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(exact(item) for item in value))
    if isinstance(value, datetime):
        return value
    return (type(value).__name__, repr(value))


# PostgreSQL's text columns hold no NUL; JSON columns of ours may.
plain_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
any_text = st.text(st.characters(), max_size=12)
floats = st.floats()
optional_floats = st.none() | floats
times = st.datetimes(
    min_value=datetime(2000, 1, 2),
    max_value=datetime(2100, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]),
)
params = st.dictionaries(
    any_text, st.sampled_from([1, 1.0, True, 0, 0.0, -0.0, False, "1", "True"]) | floats | any_text
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | any_text,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(any_text | st.sampled_from(["$float", "$dict"]), inner, max_size=3)
    ),
    max_leaves=6,
)
flag_names = any_text.map(canonical_flag).filter(lambda name: canonical_flag(name) == name)
json_objects = st.dictionaries(any_text, json_values, max_size=4)
configs = st.builds(
    EngineConfig,
    engine=any_text,
    model=any_text,
    flags=st.dictionaries(flag_names, json_values.filter(lambda value: value is not None), max_size=4),
    env=st.dictionaries(any_text, any_text, max_size=2),
)
failures = st.builds(
    Failure,
    kind=st.sampled_from(FailureKind),
    stage=st.sampled_from(Stage),
    blame=st.sampled_from(Blame),
    detail=any_text,
    evidence=st.lists(any_text, max_size=3).map(tuple),
    exit_code=st.none() | st.integers(),
    violation=optional_floats,
    retryable=st.booleans(),
    phase=st.none() | st.sampled_from(MemoryPhase),
    facts=st.dictionaries(any_text, floats, max_size=3),
)
constraints = st.builds(
    Constraint,
    name=any_text,
    limit=floats,
    observed=optional_floats,
    low=optional_floats,
    high=optional_floats,
    violation=optional_floats,
    verdict=st.sampled_from(Verdict),
)
scores = st.builds(
    Score,
    metric=any_text,
    value=floats,
    maximise=st.booleans(),
    verdict=st.sampled_from(Verdict),
    constraints=st.lists(constraints, max_size=2).map(tuple),
)
owners = st.builds(
    ProcessIdentity, host=any_text, boot_id=any_text, pid=st.integers(), start_ticks=st.integers(min_value=0)
)
stages = st.builds(StageTiming, stage=st.sampled_from(Stage), started_at=times, duration_s=optional_floats)
attempt_parts = st.builds(
    AttemptRecord,
    number=st.just(1),
    owner=owners,
    started_at=times,
    ended_at=st.none() | times,
    folder=plain_text,
    argv=st.lists(any_text, max_size=3).map(tuple),
    stages=st.lists(stages, max_size=3).map(tuple),
    failure=st.none() | failures,
)
trials = st.builds(
    TrialRecord,
    study=st.just(""),
    number=st.integers(min_value=0, max_value=2**31 - 1),
    role=st.sampled_from(TrialRole),
    state=st.sampled_from(FINAL_STATES),
    params=params,
    config=st.none() | configs,
    metrics=st.dictionaries(any_text, optional_floats, max_size=4),
    score=st.none() | scores,
    failure=st.none() | failures,
    attempts=st.lists(attempt_parts, max_size=2).map(
        lambda parts: tuple(dataclasses.replace(part, number=1 + index) for index, part in enumerate(parts))
    ),
    notes=st.lists(any_text, max_size=2).map(tuple),
)


@settings(max_examples=40)
@given(record=trials)
def test_a_trial_comes_back_exactly_as_it_was_put(store, record):
    study = new_study(store)
    record = dataclasses.replace(record, study=study)
    store.put_trial(trial(study, record.number))
    for part in record.attempts:
        store.begin_attempt(study, record.number, attempt(part.number))
        store.put_attempt(study, record.number, part)
    store.put_trial(record)
    found = store.trial(study, record.number)
    assert exact(found) == exact(record)
    assert exact(store.trials(study)) == exact([record])


@settings(max_examples=15)
@given(
    created_at=times,
    identity=json_objects,
    config=json_objects,
    objective=plain_text,
    maximise=st.booleans(),
    versions=st.dictionaries(any_text, any_text, max_size=3),
    host=json_objects,
)
def test_a_study_comes_back_exactly_as_it_was_created(store, **fields):
    record = StudyRecord(name=f"study-{next(_names)}", **fields)
    store.create_study(record)
    assert exact(store.study(record.name)) == exact(record)
    assert exact(store.studies()[-1]) == exact(record)


def test_what_is_not_there_is_none_or_empty(store):
    study = new_study(store)
    assert store.study("never-created") is None
    assert store.trials("never-created") == []
    assert store.trial(study, 7) is None


@settings(max_examples=15)
@given(
    number=st.integers(0, 10**6),
    params=st.dictionaries(
        any_text, st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False) | any_text
    ),
    probability=st.floats(0, 1),
    value=st.floats(allow_nan=False),
    high=st.floats(allow_nan=False),
    reason=any_text,
)
def test_what_is_recommended_comes_back_exactly(store, number, params, probability, value, high, reason):
    study = new_study(store)
    assert store.recommendation(study) is None
    for runs in (1, 2):
        put = Recommendation(number, params, probability, value, -math.inf, high, runs, reason)
        store.put_recommendation(study, put)
        assert exact(store.recommendation(study)) == exact(put)
    store.put_recommendation(study, None)
    assert store.recommendation(study) is None


def test_nothing_is_recommended_of_a_study_that_is_not_there(store):
    assert store.recommendation("never-created") is None
    with pytest.raises(AutotuneError, match="never-created"):
        store.put_recommendation("never-created", None)


def test_a_study_is_created_once(store):
    study = new_study(store)
    with pytest.raises(InputError, match=f"study {study} exists already"):
        store.create_study(StudyRecord(study, START, {}, {}, "output_tokens_per_s", maximise=True))


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "-x", "a" * 101, "two words"])
def test_a_study_name_that_cannot_be_a_folder_is_refused(store, name):
    with pytest.raises(InputError, match="cannot be used"):
        store.create_study(StudyRecord(name, START, {}, {}, "output_tokens_per_s", maximise=True))


def test_trials_come_by_number_and_attempts_by_theirs(store):
    study = new_study(store)
    for number in (2, 0, 1):
        store.put_trial(trial(study, number))
    for number in (1, 2):
        store.begin_attempt(study, 1, attempt(number))
    found = store.trials(study)
    assert [record.number for record in found] == [0, 1, 2]
    assert [part.number for part in found[1].attempts] == [1, 2]


@pytest.mark.parametrize("before", TrialState)
@pytest.mark.parametrize("after", TrialState)
def test_only_the_drawn_transitions_are_taken(store, before, after):
    study = new_study(store)
    store.put_trial(trial(study, state=before))
    changed = dataclasses.replace(trial(study, state=after), notes=("changed",))
    allowed = after in TRANSITIONS[before] or (after is before and not before.is_final)
    if allowed:
        store.put_trial(changed)
        assert store.trial(study, 0) == changed
    else:
        with pytest.raises(AutotuneError, match=before.value):
            store.put_trial(changed)
        assert store.trial(study, 0) == trial(study, state=before)


def test_a_final_record_may_be_put_again_unchanged(store):
    study = new_study(store)
    done = trial(study, state=TrialState.FAILED)
    store.put_trial(done)
    store.put_trial(done)
    with pytest.raises(AutotuneError, match="its record cannot change"):
        store.put_trial(dataclasses.replace(done, params={"max-num-seqs": 1}))


def test_a_parameter_of_another_type_is_a_change(store):
    study = new_study(store)
    done = dataclasses.replace(trial(study, state=TrialState.FEASIBLE), params={"enabled": True})
    store.put_trial(done)
    with pytest.raises(AutotuneError, match="its record cannot change"):
        store.put_trial(dataclasses.replace(done, params={"enabled": 1}))


def test_put_trial_leaves_attempts_alone(store):
    study = new_study(store)
    store.put_trial(trial(study))
    store.begin_attempt(study, 0, attempt())
    store.put_trial(trial(study, state=TrialState.FEASIBLE))
    found = store.trial(study, 0)
    assert found is not None
    assert found.attempts == (attempt(),)


def test_writes_to_what_does_not_exist_are_refused(store):
    study = new_study(store)
    with pytest.raises(AutotuneError, match="no study 'never-created'"):
        store.put_trial(trial("never-created"))
    with pytest.raises(AutotuneError, match="no trial 3"):
        store.begin_attempt(study, 3, attempt())
    store.put_trial(trial(study))
    with pytest.raises(AutotuneError, match="no attempt 1"):
        store.put_attempt(study, 0, attempt())


def test_an_attempt_is_begun_once_and_never_on_a_final_trial(store):
    study = new_study(store)
    store.put_trial(trial(study))
    store.begin_attempt(study, 0, attempt())
    with pytest.raises(AutotuneError, match="holds already"):
        store.begin_attempt(study, 0, attempt(owner=OTHER))
    store.put_trial(trial(study, state=TrialState.INFEASIBLE))
    with pytest.raises(AutotuneError, match="takes no further attempt"):
        store.begin_attempt(study, 0, attempt(2))
    found = store.trial(study, 0)
    assert found is not None
    assert found.attempts == (attempt(),)


def test_a_time_without_zone_is_refused(store):
    study = new_study(store)
    store.put_trial(trial(study))
    with pytest.raises(AutotuneError, match="has no zone"):
        store.begin_attempt(study, 0, dataclasses.replace(attempt(), started_at=datetime(2026, 1, 1)))


def test_trials_of_dead_owners_are_interrupted_and_can_be_adopted(store):
    study = new_study(store)
    for number, owner in enumerate([OWNER, OTHER]):
        store.put_trial(trial(study, number))
        store.begin_attempt(study, number, attempt(owner=owner))
    store.put_trial(trial(study, 2))
    store.put_trial(trial(study, 3, TrialState.FEASIBLE))
    marked = store.mark_interrupted(study, lambda owner: owner == OTHER)
    assert [(record.number, record.state) for record in marked] == [
        (0, TrialState.INTERRUPTED),
        (2, TrialState.INTERRUPTED),
    ]
    assert marked[0].attempts == (attempt(),)
    assert [record.state.value for record in store.trials(study)] == [
        "interrupted",
        "running",
        "interrupted",
        "feasible",
    ]
    assert store.mark_interrupted(study, lambda owner: owner == OTHER) == []
    store.begin_attempt(study, 0, attempt(2, owner=OTHER))
    adopted = store.trial(study, 0)
    assert adopted is not None
    assert adopted.state is TrialState.RUNNING
    assert [part.owner for part in adopted.attempts] == [OWNER, OTHER]


def test_the_latest_attempt_decides_whether_the_owner_lives(store):
    study = new_study(store)
    store.put_trial(trial(study))
    store.begin_attempt(study, 0, attempt(1, owner=OWNER))
    store.begin_attempt(study, 0, attempt(2, owner=OTHER))
    assert store.mark_interrupted(study, lambda owner: owner == OTHER) == []


def test_a_failure_inside_a_write_leaves_nothing_behind(store):
    study = new_study(store)
    store.put_trial(trial(study))
    store.begin_attempt(study, 0, attempt())

    def fails(owner):
        raise OSError("no /proc")

    with pytest.raises(OSError, match="no /proc"):
        store.mark_interrupted(study, fails)
    found = store.trial(study, 0)
    assert found is not None
    assert found.state is TrialState.RUNNING


def test_writers_at_the_same_time_lose_nothing(database):
    with open_store(database) as first:
        study = new_study(first)
    faults: list[BaseException] = []

    def write(worker: int) -> None:
        try:
            with open_store(database) as own:
                for index in range(15):
                    number = 15 * worker + index
                    own.put_trial(trial(study, number))
                    own.begin_attempt(study, number, attempt())
                    own.put_trial(trial(study, number, TrialState.FEASIBLE))
        except AutotuneError as error:
            faults.append(error)

    workers = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert faults == []
    with open_store(database) as reader:
        found = reader.trials(study)
    assert [record.number for record in found] == list(range(60))
    assert all(record.state is TrialState.FEASIBLE and len(record.attempts) == 1 for record in found)


def test_one_of_two_adopters_wins(database):
    with open_store(database) as first, open_store(database) as second:
        study = new_study(first)
        first.put_trial(trial(study, state=TrialState.INTERRUPTED))
        first.begin_attempt(study, 0, attempt(1, OWNER))
        with pytest.raises(AutotuneError, match="holds already"):
            second.begin_attempt(study, 0, attempt(1, OTHER))


def test_values_can_be_read_in_plain_sql(database, store):
    study = new_study(store)
    for number, value in enumerate([12.5, math.inf, math.nan]):
        score = Score("output_tokens_per_s", value, True, Verdict.FEASIBLE)
        store.put_trial(dataclasses.replace(trial(study, number, TrialState.FEASIBLE), score=score))
    engine = sa.create_engine(database)
    chosen = sa.text(
        "SELECT t.value FROM autotune_trials t JOIN autotune_studies s ON s.id = t.study_id WHERE s.name = :study "
        "ORDER BY t.number"
    )
    with engine.connect() as connection:
        assert list(connection.scalars(chosen, {"study": study})) == [12.5, None, None]
    engine.dispose()


def test_times_sort_as_text_in_plain_sql(database, store):
    name = f"study-{next(_names)}"
    elsewhere = START.astimezone(timezone(timedelta(hours=-5)))
    store.create_study(StudyRecord(name, elsewhere, {}, {}, "output_tokens_per_s", maximise=True))
    engine = sa.create_engine(database)
    chosen = sa.text("SELECT created_at FROM autotune_studies WHERE name = :name")
    with engine.connect() as connection:
        assert connection.scalar(chosen, {"name": name}) == "2026-03-01T12:00:00.000000+00:00"
    engine.dispose()
