"""optuna-dashboard's own answers, served on a small study: four trials, of which the best value is infeasible."""

from __future__ import annotations

import builtins
import dataclasses
import io
import json
import shutil
import sqlite3
import sys
from contextlib import closing
from wsgiref.util import setup_testing_defaults

import optuna
import pytest
from optuna.trial import TrialState as OptunaState

from optimizer.core.errors import HostError
from optimizer.core.trial import TrialState
from optimizer.storage import attempt_folder, open_store
from optimizer.storage.dashboard import dashboard_app
from optimizer.storage.dashboard_records import ShownRecords
from optimizer.storage.dashboard_storage import DashboardStorage
from optimizer.storage.optuna_storage import optuna_storage

COMPLETE = OptunaState.COMPLETE
LOG = b"INFO Maximum concurrency 4.0x \xe2\x80\x94 ready\n" * 1000


class Client:
    """Calls a WSGI application in this process."""

    def __init__(self, app) -> None:
        self._app = app

    def call(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, str], bytes]:
        data = json.dumps(body).encode()
        environ: dict[str, object] = {"REQUEST_METHOD": method, "PATH_INFO": path, "CONTENT_TYPE": "application/json"}
        environ |= {"CONTENT_LENGTH": str(len(data)), "wsgi.input": io.BytesIO(data)}
        setup_testing_defaults(environ)
        answer: list[tuple[int, dict[str, str]]] = []

        def start_response(status, headers, exc_info=None):
            answer.append((int(status[:3]), dict(headers)))

        chunks = self._app(environ, start_response)
        content = b"".join(chunks)
        if hasattr(chunks, "close"):
            chunks.close()
        return *answer[0], content

    def json(self, path: str):
        status, _, content = self.call("GET", path)
        assert status == 200, content
        return json.loads(content, parse_constant=pytest.fail)


def new_study(store, name="tiny", direction="maximize"):
    return optuna.create_study(study_name=name, storage=optuna_storage(store), direction=direction)


def close(study) -> None:
    study._storage._backend.engine.dispose()


def tell(study, state, value, constraints, /, **attributes):
    trial = study.ask()
    trial.suggest_int("max-num-seqs", 1, 64)
    for name, attribute in attributes.items():
        trial.set_user_attr(name, attribute)
    for name, constraint in constraints.items():
        trial.set_constraint(name, constraint)
    study.tell(trial, value, state=state)


@pytest.fixture(scope="module")
def template(tmp_path_factory, records):
    """A folder with a study: feasible 300, infeasible 900, a crash, undecided 500 whose limits hold on paper."""
    folder = tmp_path_factory.mktemp("template")
    with open_store(str(folder / "studies.db")) as store:
        store.create_study(records.study)
        outcomes = [(TrialState.FEASIBLE, 300.0), (TrialState.INFEASIBLE, 900.0), (TrialState.FAILED, None)]
        for number, (state, value) in enumerate([*outcomes, (TrialState.UNDECIDED, 500.0)]):
            store.put_trial(records.trial(number))
            store.begin_attempt("tiny", number, records.attempt())
            store.put_trial(records.trial(number, state, value))
        study = new_study(store)
        tell(study, COMPLETE, 300.0, {"crash": -1.0, "p99_e2e_ms": -0.2}, state="feasible", p99_e2e_ms=640.0)
        tell(study, COMPLETE, 900.0, {"crash": -1.0, "p99_e2e_ms": 0.7}, state="infeasible")
        tell(study, OptunaState.PRUNED, None, {"crash": float("inf")}, state="failed")
        tell(study, COMPLETE, 500.0, {"crash": -1.0, "p99_e2e_ms": -0.01}, state="undecided")
        log = attempt_folder(store.base_folder, "tiny", 2, 1) / "engine.log"
        log.parent.mkdir(parents=True)
        log.write_bytes(LOG)
        close(study)
    return folder


@pytest.fixture
def filled(template, tmp_path):
    """A store on a copy of the template."""
    shutil.copytree(template, tmp_path / "filled")
    with open_store(str(tmp_path / "filled" / "studies.db"), must_exist=True) as store:
        yield store


@pytest.fixture
def client(filled):
    return Client(served(filled))


def served(store):
    return dashboard_app(
        store,
        lambda trial: f"**trial {trial.number}** {trial.state.value}",
        lambda study, trials: f"# {study.name}\n{len(trials)} trials\n" + "x" * 5000,
    )


def dump(store) -> list[str]:
    """Everything in the database, as SQL."""
    with closing(sqlite3.connect(store.url.database)) as connection:
        return list(connection.iterdump())


def test_the_list_shows_the_study(client):
    (summary,) = client.json("/api/studies")["study_summaries"]
    assert (summary["study_name"], summary["directions"]) == ("tiny", ["maximize"])


def test_the_best_trial_is_the_feasible_one(client):
    page = client.json("/api/studies/1")
    assert [(trial["number"], trial["values"]) for trial in page["best_trials"]] == [(0, [300.0])]
    assert page["objective_names"] == ["output_tokens_per_s"]


def test_constraints_grey_all_trials_that_are_not_feasible(client):
    page = client.json("/api/studies/1")
    assert [trial["constraints"] for trial in page["trials"]] == [[-1.0, -0.2], [-1.0, 0.7], [1e6], [-1.0, -0.01, 1.0]]
    assert [trial["state"] for trial in page["trials"]] == ["Complete", "Complete", "Pruned", "Complete"]


def test_notes_are_those_of_the_records(client):
    page = client.json("/api/studies/1")
    assert page["note"]["body"] == "# tiny\n4 trials\n" + "x" * 5000
    assert [trial["note"]["body"] for trial in page["trials"]] == [
        "**trial 0** feasible",
        "**trial 1** infeasible",
        "**trial 2** failed",
        "**trial 3** undecided",
    ]


def test_user_attributes_are_columns(client):
    page = client.json("/api/studies/1")
    assert {"key": "p99_e2e_ms", "sortable": True} in page["union_user_attrs"]
    assert {"key": "state", "value": "feasible"} in page["trials"][0]["user_attrs"]


def test_the_engine_log_is_an_artifact_that_opens(filled, client):
    trial = client.json("/api/studies/1")["trials"][2]
    (artifact,) = trial["artifacts"]
    assert (artifact["filename"], artifact["mimetype"]) == ("attempt-1-engine.log", "text/plain; charset=utf-8")
    path = f"/artifacts/1/{trial['trial_id']}/{artifact['artifact_id']}"
    status, headers, content = client.call("GET", path)
    assert (status, headers["Content-Type"], content) == (200, "text/plain; charset=utf-8", LOG)
    status, _, content = Client(served(filled)).call("GET", path)
    assert (status, content) == (200, LOG), "the link works in a server that has listed nothing yet"


def test_no_artifact_is_found_under_another_trial_or_path(client):
    trials = client.json("/api/studies/1")["trials"]
    (artifact,) = trials[2]["artifacts"]
    for path in (
        f"/artifacts/1/{trials[0]['trial_id']}/{artifact['artifact_id']}",
        f"/artifacts/1/{artifact['artifact_id']}",
        f"/artifacts/1/{trials[2]['trial_id']}/00000000-0000-0000-0000-000000000000",
        "/artifacts/1/1/../../../../etc/passwd",
    ):
        assert client.call("GET", path)[0] == 404, path


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", "/api/studies/1", {"remove_associated_artifacts": True}),
        ("POST", "/api/studies", {"study_name": "other", "directions": ["minimize"]}),
        ("POST", "/api/studies/1/rename", {"study_name": "other"}),
        ("PUT", "/api/studies/1/note", {"version": 2, "body": "mine"}),
        ("PUT", "/api/studies/1/1/note", {"version": 2, "body": "mine"}),
        ("POST", "/api/trials/1/user-attrs", {"user_attrs": {"a": 1}}),
        ("POST", "/api/artifacts/1/1", {"file": "data:text/plain;base64,AA=="}),
        ("POST", "/incompatible-rdb-schema", {}),
    ],
)
def test_changes_are_refused_with_the_reason(filled, client, method, path, body):
    before = dump(filled)
    status, headers, content = client.call(method, path, body)
    assert (status, headers["Content-Type"]) == (403, "application/json")
    assert "only shows" in json.loads(content)["reason"]
    assert dump(filled) == before
    assert (attempt_folder(filled.base_folder, "tiny", 2, 1) / "engine.log").read_bytes() == LOG


def test_the_database_itself_refuses_writes_of_the_dashboards_storage(filled):
    storage = DashboardStorage(filled, ShownRecords(filled, lambda trial: "", lambda study, trials: ""))
    before = dump(filled)
    for write in (
        lambda: storage.delete_study(1),
        lambda: storage.set_study_system_attr(1, "dashboard:note_ver", 2),
        lambda: storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "other"),
    ):
        with pytest.raises(optuna.exceptions.StorageInternalError):
            write()
    assert dump(filled) == before
    assert storage.get_best_trial(1).number == 0
    storage.engine.dispose()


def test_looking_at_everything_writes_nothing(filled, client):
    before = dump(filled)
    pages = ("/dashboard", "/dashboard/studies/1", "/api/meta", "/api/studies", "/api/studies/1", "/csv/1")
    for page in (*pages, "/api/studies/1/param_importances"):
        assert client.call("GET", page)[0] == 200, page
    assert dump(filled) == before


def test_no_infeasible_trial_is_best_when_none_is_feasible(store, records):
    study = new_study(store)
    store.put_trial(records.trial(0, TrialState.INFEASIBLE, 900.0))
    tell(study, COMPLETE, 900.0, {"p99_e2e_ms": 0.7})
    page = Client(served(store)).json("/api/studies/1")
    assert page["best_trials"] == []
    assert len(page["trials"]) == 1
    close(study)


@pytest.mark.parametrize(("direction", "best"), [("maximize", 1), ("minimize", 2)])
def test_a_study_of_optuna_alone_is_shown_with_its_feasible_best(store, direction, best):
    study = new_study(store, "theirs", direction)
    for value, violation in ((0.0, 1.0), (6.0, -1.0), (5.0, 0.0), (9.0, 0.1)):
        tell(study, COMPLETE, value, {"limit": violation})
    page = Client(served(store)).json("/api/studies/1")
    assert [trial["number"] for trial in page["best_trials"]] == [best]
    assert page["note"] == {"version": 0, "body": ""}
    close(study)


def test_a_study_without_optuna_tables_gives_an_empty_list(store):
    assert Client(served(store)).json("/api/studies")["study_summaries"] == []


def test_a_running_trial_is_shown_as_it_goes(filled, records):
    filled.put_trial(dataclasses.replace(records.trial(4), params={"max-num-seqs": 3}))
    study = optuna.load_study(study_name="tiny", storage=optuna_storage(filled))
    study.ask()
    close(study)
    page = Client(served(filled)).json("/api/studies/1")
    assert page["trials"][4]["state"] == "Running"
    assert page["trials"][4]["note"]["body"] == "**trial 4** running"
    assert page["trials"][4]["constraints"] == []


def test_a_missing_dashboard_is_the_hosts_fault_with_the_line_that_installs_it(store, monkeypatch):
    real_import = builtins.__import__

    def absent(name, *args, **kwargs):
        if name == "optuna_dashboard":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real_import(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "optuna_dashboard", raising=False)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(HostError, match="optuna-dashboard") as caught:
        served(store)
    assert caught.value.hint == "pip install 'vllm-autotune[dashboard]'"
