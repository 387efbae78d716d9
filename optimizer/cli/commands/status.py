"""`status`: the studies of a history, or the trials of one."""

from __future__ import annotations

from optimizer.cli.console import result_console, write_result
from optimizer.cli.options import JsonOption, StorageOption, StudyOption


def status(study: StudyOption = None, storage: StorageOption = None, json: JsonOption = False) -> None:
    """List the studies, or with --study the trials of one."""
    if study is None:
        _list_studies(storage, as_json=json)
    else:
        _list_trials(storage, study, as_json=json)


def _list_studies(storage: str | None, *, as_json: bool) -> None:
    from optimizer.app.status import read_studies
    from optimizer.report.json_view import study_list
    from optimizer.report.status_view import print_studies

    studies = [(history.study, history.trials) for history in read_studies(storage)]
    if as_json:
        write_result(study_list(studies).model_dump_json(indent=2))
    else:
        print_studies(result_console(), studies)


def _list_trials(storage: str | None, study: str, *, as_json: bool) -> None:
    from optimizer.app.history import read_study
    from optimizer.report.json_view import study_view
    from optimizer.report.status_view import print_study

    history = read_study(storage, study)
    if as_json:
        write_result(study_view(history.study, history.trials, history.recommendation).model_dump_json(indent=2))
    else:
        print_study(result_console(), history.study, history.trials, history.recommendation)
