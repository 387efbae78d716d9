"""What the history has to say in optuna-dashboard, in the form of the attributes that the dashboard reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from optimizer.core.record import StudyRecord, TrialRecord, best_trial
from optimizer.core.trial import TrialState
from optimizer.storage.store import StudyStore

NoteOf: TypeAlias = Callable[[TrialRecord], str]
"""A trial in Markdown."""
StudyNote: TypeAlias = Callable[[StudyRecord, list[TrialRecord]], str]
"""A study in Markdown: baseline, best, how to export it."""

REFRESH_S = 2.0
"""How old shown records may be. The dashboard keeps trials of its own for as long, and asks every 10 s or so."""
LARGEST_VIOLATION = 1e6
"""Shown in place of infinity, which no browser reads from JSON."""


@dataclass(frozen=True, slots=True)
class ShownStudy:
    """A study as it was read last.

    Attributes:
        objective: Metric name of the objective.
        trials: By number.
        best: Number of the best trial, or None.
        note: The study's note.
        trial_notes: By number.
    """

    objective: str
    trials: Mapping[int, TrialRecord]
    best: int | None
    note: str
    trial_notes: Mapping[int, str]


class ShownRecords:
    """The studies of a history, read anew when they are older than `REFRESH_S`. Notes of final trials are kept.

    Args:
        store: The history.
        note_of: Gives a trial's note.
        study_note: Gives a study's note.
        clock_s: Monotonic seconds.
    """

    def __init__(
        self,
        store: StudyStore,
        note_of: NoteOf,
        study_note: StudyNote,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._note_of = note_of
        self._study_note = study_note
        self._clock_s = clock_s
        self._read: dict[str, tuple[float, ShownStudy | None]] = {}
        self._final_notes: dict[tuple[str, int], str] = {}

    def study(self, name: str) -> ShownStudy | None:
        """The study of that name, or None when the history has none (Optuna may)."""
        now_s = self._clock_s()
        read_s, shown = self._read.get(name, (float("-inf"), None))
        if now_s - read_s >= REFRESH_S:
            shown = self._read_study(name)
            self._read[name] = (now_s, shown)
        return shown

    def _read_study(self, name: str) -> ShownStudy | None:
        study = self._store.study(name)
        if study is None:
            return None
        trials = self._store.trials(name)
        best = best_trial(trials, maximise=study.maximise)
        return ShownStudy(
            objective=study.objective,
            trials={trial.number: trial for trial in trials},
            best=None if best is None else best.number,
            note=self._study_note(study, trials),
            trial_notes={trial.number: self._trial_note(trial) for trial in trials},
        )

    def _trial_note(self, trial: TrialRecord) -> str:
        if not trial.state.is_final:
            return self._note_of(trial)
        key = (trial.study, trial.number)
        if key not in self._final_notes:
            self._final_notes[key] = self._note_of(trial)
        return self._final_notes[key]


def shown_constraints(constraints: Mapping[str, float], trial: TrialRecord | None) -> list[float]:
    """A trial's constraints as the list that the dashboard knows: it greys a trial with a value above 0.

    The record has the last word, for its verdict also weighs how sure the measurement is: 1.0 is added to a trial that
    ended other than feasible though no limit is seen broken, and a feasible one shows no value above 0.

    Args:
        constraints: What Optuna was told, by name.
        trial: The record, or None when the history has none.
    """
    values = [max(-LARGEST_VIOLATION, min(LARGEST_VIOLATION, constraints[name])) for name in sorted(constraints)]
    if trial is None or not trial.state.is_final:
        return values
    if trial.state is TrialState.FEASIBLE:
        return [min(0.0, value) for value in values]
    return values if any(value > 0.0 for value in values) else [*values, 1.0]


def with_notes(attributes: Mapping[str, Any], shown: ShownStudy, numbers: Mapping[int, int]) -> dict[str, Any]:
    """A study's system attributes with the notes of the study and its trials, and the objective's name.

    A note that somebody wrote with another dashboard stays, below ours.

    Args:
        attributes: What Optuna's tables hold.
        shown: The study.
        numbers: Optuna's trial id to the trial's number.
    """
    notes = {"dashboard:": shown.note}
    for trial_id, number in numbers.items():
        if number in shown.trial_notes:
            notes[f"dashboard:{trial_id}:"] = shown.trial_notes[number]
    result = {"study:metric_names": [shown.objective], **attributes}
    for prefix, note in notes.items():
        pieces = sorted(
            (key for key in result if key.startswith(f"{prefix}note_str:")), key=lambda key: int(key.rpartition(":")[2])
        )
        own = "".join(result.pop(key) for key in pieces)
        result[f"{prefix}note_ver"] = int(attributes.get(f"{prefix}note_ver", 0)) + 1
        result[f"{prefix}note_str:0"] = f"{note}\n\n---\n\n{own}" if own else note
    return result
