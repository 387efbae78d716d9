"""`export`: the launch flags of a study's best trial, or of one that is named."""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass

from optimizer.app.history import StudyHistory, read_study
from optimizer.core.errors import AutotuneError
from optimizer.core.record import TrialRecord
from optimizer.core.trial import TrialState
from optimizer.report.confirm_view import confirmation_note
from optimizer.report.export import choose_trial, command_text, launch_flags
from optimizer.report.json_view import export_view


class ExportFormat(enum.StrEnum):
    """The form in which a setting is given."""

    FLAGS = "flags"
    """One line of flags, to append to a launch command."""
    COMMAND = "command"
    """The whole command, which starts on the engine that the setting was measured with."""
    JSON = "json"
    """For scripts."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A setting in the form that was asked for.

    Attributes:
        text: To hand on.
        warning: What the person must know before using it; None when nothing.
        note: Whether its gain was repeated on held-out traffic; None where there is no gain to repeat.
    """

    text: str
    warning: str | None
    note: str | None


def export_setting(storage: str | None, study: str | None, form: ExportFormat, number: int | None) -> Exported:
    """The setting of the best trial, or of trial `number`.

    Raises:
        NothingFeasible: No number was given and no trial is feasible.
        InputError: The trial does not exist or was never measured, or there is no such study.
        HostError: The history cannot be read.
    """
    history = read_study(storage, study)
    trial = choose_trial(history.study, history.trials, number, history.recommendation)
    text = _text(history, trial, form)
    unfit = trial.state is not TrialState.FEASIBLE
    warning = f"trial #{trial.number} is {trial.state}: it was not shown to meet the limits" if unfit else None
    return Exported(text, warning, None if unfit else confirmation_note(history.study, history.trials, trial))


def _text(history: StudyHistory, trial: TrialRecord, form: ExportFormat) -> str:
    config = trial.config
    if config is None:
        raise AutotuneError(f"trial {trial.number} of study {trial.study} is measured and has no config")
    match form:
        case ExportFormat.FLAGS:
            return shlex.join(launch_flags(config))
        case ExportFormat.COMMAND:
            return command_text(trial, config)
        case ExportFormat.JSON:
            return export_view(history.study, history.trials, trial, config).model_dump_json(indent=2)
