"""`show`: one trial in full."""

from __future__ import annotations

from typing import Annotated

import typer

from optimizer.cli.console import result_console, write_result
from optimizer.cli.options import JsonOption, StorageOption, StudyOption


def show(
    trial: Annotated[int, typer.Argument(min=0, metavar="TRIAL", help="Number of the trial; 0 is the baseline.")],
    study: StudyOption = None,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Show one trial in full: setting, score, metrics, failure, times, and where its engine log lies."""
    from optimizer.app.show import read_trial
    from optimizer.report.trial_json import trial_detail
    from optimizer.report.trial_view import print_trial

    shown = read_trial(storage, study, trial)
    if json:
        write_result(trial_detail(shown.trial).model_dump_json(indent=2))
    else:
        print_trial(result_console(), shown.trial, shown.baseline)
