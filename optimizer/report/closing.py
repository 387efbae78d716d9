"""What a study ends with: the best against the baseline, the flags to copy, and where everything lies."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from optimizer.core.confirmation import study_trials
from optimizer.core.recommendation import Recommendation, chosen_trial
from optimizer.core.record import StudyRecord, TrialRecord, best_trial
from optimizer.core.scoring import Constraint
from optimizer.core.study_end import StudyEnd
from optimizer.core.trial import TrialRole, TrialState
from optimizer.objectives.confirmation import Confirmation, Reason, judge_confirmation
from optimizer.report.changes import baseline_of, trial_changes
from optimizer.report.commands import StudyCommands
from optimizer.report.confirm_view import confirmation_text
from optimizer.report.export import launch_flags
from optimizer.report.layout import copyable, heading, labelled, plain_table
from optimizer.report.nearest import (
    NearestMiss,
    Relaxation,
    best_relaxation,
    binding_limit,
    least_relaxation,
    nearest_miss,
)
from optimizer.report.runs import runs_text
from optimizer.report.simulation import SIMULATED, is_simulated
from optimizer.report.wording import MISSING, change, limit_text, metric_label, metric_value, table_value, value_text

_SHOWN_METRICS = (
    "p99_e2e_ms",
    "p99_ttft_ms",
    "p99_tpot_ms",
    "p99_itl_ms",
    "preemptions",
    "prefix_cache_hit_rate",
    "spec_acceptance_rate",
)

_ENDINGS = {
    StudyEnd.EXHAUSTED: "Ended early: every setting of the space that may be launched was tried.",
    StudyEnd.LITTLE_GAIN: "Ended early: of its last proposals the search expected less than --stop-below-gain asks.",
}


@dataclass(frozen=True, slots=True)
class Closing:
    """All that the closing report tells.

    Attributes:
        total_trials: How many the study was to have.
        ended: Why this run ended.
        storage_display: Where the record lies, password hidden.
        record_folder: Where the engine logs and request samples lie.
        recommendation: Which measured setting to use, by all that the trials tell; None where nothing is feasible.
    """

    study: StudyRecord
    trials: list[TrialRecord]
    total_trials: int
    ended: StudyEnd
    storage_display: str
    record_folder: Path
    commands: StudyCommands
    recommendation: Recommendation | None = None

    @property
    def best(self) -> TrialRecord | None:
        """The trial to use: the recommended one, or the best feasible one where nothing was recommended."""
        return chosen_trial(self.trials, self.recommendation, maximise=self.study.maximise)

    @property
    def done(self) -> int:
        """Trials that ended."""
        return sum(trial.state.is_final for trial in self.searched)

    @property
    def searched(self) -> list[TrialRecord]:
        """The trials without the repeats of a confirmation."""
        return study_trials(self.trials)

    @property
    def confirmation(self) -> Confirmation | None:
        """What repeats on held-out traffic say of the best trial; None when there are none."""
        best = self.best
        return None if best is None else judge_confirmation(self.trials, best.number, maximise=self.study.maximise)


def print_closing(console: Console, closing: Closing) -> None:
    """Prints the report; it says the same whether or not the console is a terminal."""
    heading(console, f"study {closing.study.name}: {closing.done} of {closing.total_trials} trials")
    console.print(Text(states_text(closing.searched)))
    if closing.ended in _ENDINGS:
        console.print(Text(_ENDINGS[closing.ended]))
    if is_simulated(closing.study):
        console.print(Text(SIMULATED, style="bold yellow"))
    console.print(_comparison(closing))
    best = closing.best
    if best is None:
        _print_nothing_feasible(console, closing)
    else:
        _print_best(console, closing, best)
    _print_places(console, closing, best)


def states_text(trials: list[TrialRecord]) -> str:
    """How many trials ended in each state, and what the failed ones died of."""
    counts = Counter(trial.state for trial in trials)
    kinds = Counter(trial.failure.kind.value for trial in trials if trial.state is TrialState.FAILED and trial.failure)
    causes = {TrialState.FAILED: ", ".join(f"{kind} {count}x" for kind, count in kinds.most_common())}
    parts = []
    for state in TrialState:
        if counts[state]:
            cause = causes.get(state)
            parts.append(f"{counts[state]} {state}" + (f" ({cause})" if cause else ""))
    return ", ".join(parts) or "no trials"


def _comparison(closing: Closing) -> Table:
    columns = _columns(closing)
    limits = _limits(closing)
    table = plain_table("", *(title for title, _ in columns))
    baseline = baseline_of(closing.trials)
    reference = None if baseline is None else baseline.value
    shown = [trial for _, trial in columns]
    table.add_row("state", *(trial.state.value for trial in shown))
    objective = closing.study.objective
    table.add_row(metric_label(objective), *(table_value(objective, trial.value) for trial in shown))
    table.add_row("vs baseline", *(MISSING if t is baseline else change(t.value, reference) for t in shown))
    for name in _metric_rows(limits, shown, objective):
        cap = f" <= {metric_value(name, limits[name].limit)}" if name in limits else ""
        table.add_row(metric_label(name) + cap, *(table_value(name, _observed(trial, name)) for trial in shown))
    return table


def _columns(closing: Closing) -> list[tuple[str, TrialRecord]]:
    """Best, baseline and default, each with its title; a trial that is two of them stands once."""
    titles: dict[int, list[str]] = {}
    chosen: dict[int, TrialRecord] = {}
    default = next((trial for trial in closing.trials if trial.role is TrialRole.DEFAULT), None)
    for title, trial in (("best", closing.best), ("baseline", baseline_of(closing.trials)), ("defaults", default)):
        if trial is not None:
            titles.setdefault(trial.number, []).append(title)
            chosen[trial.number] = trial
    return [(f"{' = '.join(titles[n])} #{n}", trial) for n, trial in chosen.items()]


def _limits(closing: Closing) -> dict[str, Constraint]:
    scored = [trial.score for trial in closing.searched if trial.score is not None and trial.score.constraints]
    return {constraint.name: constraint for constraint in scored[-1].constraints} if scored else {}


def _metric_rows(limits: dict[str, Constraint], trials: list[TrialRecord], objective: str) -> list[str]:
    """Limited metrics first, then the usual ones that at least one of the trials has a figure for."""
    usual = [name for name in _SHOWN_METRICS if any(_is_figure(trial.metrics.get(name)) for trial in trials)]
    return [name for name in dict.fromkeys((*limits, *usual)) if name != objective or name in limits]


def _is_figure(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _observed(trial: TrialRecord, name: str) -> float | None:
    constraints = () if trial.score is None else trial.score.constraints
    judged = next((constraint.observed for constraint in constraints if constraint.name == name), None)
    return trial.metrics.get(name) if judged is None else judged


def _print_best(console: Console, closing: Closing, best: TrialRecord) -> None:
    baseline = baseline_of(closing.trials)
    if best.role is TrialRole.BASELINE:
        console.print(Text("Nothing better than the baseline was shown to meet the limits."))
        _print_undecided(console, closing, best)
    elif baseline is None or baseline.value is None:
        console.print(Text(f"Best: #{best.number}. The baseline has no measurement to compare it with."))
    else:
        console.print(_gain(closing, best, baseline))
    _print_recommendation(console, closing, best)
    if best.config is not None:
        heading(console, f"flags of #{best.number}")
        copyable(console, shlex.join(launch_flags(best.config)) or "none: vLLM's own defaults")


def _print_recommendation(console: Console, closing: Closing, chosen: TrialRecord) -> None:
    """Why this trial, and what became of the luckiest run where that is another."""
    recommendation = closing.recommendation
    if recommendation is None or recommendation.number != chosen.number:
        return
    ends = [metric_value(closing.study.objective, end) for end in (recommendation.low, recommendation.high)]
    told = f"#{chosen.number} is {recommendation.reason}. Expected of it: {ends[0]} to {ends[1]} (95 %)."
    luckiest = best_trial(closing.trials, maximise=closing.study.maximise)
    if luckiest is not None and luckiest.number != chosen.number:
        told += f" The best single run was #{luckiest.number}, {metric_value(closing.study.objective, luckiest.value)}."
    console.print(Text(told))


def _print_undecided(console: Console, closing: Closing, best: TrialRecord) -> None:
    """Names the undecided trial that would be better, if there is one: it may well meet the limits."""
    sign = 1.0 if closing.study.maximise else -1.0
    better = [
        trial
        for trial in closing.searched
        if trial.state is TrialState.UNDECIDED
        and trial.value is not None
        and best.value is not None
        and sign * trial.value > sign * best.value
    ]
    if better:
        ahead = max(better, key=lambda trial: sign * (trial.value or 0.0))
        told = "" if ahead.score is None else f" with {value_text(ahead.score, best.value)}"
        console.print(
            Text(
                f"Of the undecided trials {len(better)} would be better, first #{ahead.number}{told}: "
                "a longer window (workload.window.max_s) decides them."
            )
        )


def _gain(closing: Closing, best: TrialRecord, baseline: TrialRecord) -> Text:
    text = "" if best.score is None else f"Best: #{best.number}, {value_text(best.score, baseline.value)} vs baseline. "
    if baseline.state is not TrialState.FEASIBLE:
        text += f"The baseline itself is {baseline.state}: it does not meet the limits. "
    text += f"In the search {runs_text(closing.trials, best)} and {runs_text(closing.trials, baseline)}"
    confirmation = closing.confirmation
    if confirmation is None:
        return Text(f"{text}: the difference is not yet confirmed on held-out traffic; `confirm` does that.")
    counted = ", ".join(f"{count} of the {arm}" for arm, count in confirmation.runs.items())
    repeats = "" if confirmation.reason is Reason.UNFINISHED else f" (runs: {counted})"
    return Text(f"{text}. On held-out traffic{repeats} it is {confirmation_text(confirmation)}.")


def _print_nothing_feasible(console: Console, closing: Closing) -> None:
    console.print(Text("No trial met the limits.", style="bold yellow"))
    binding = binding_limit(closing.searched)
    if binding is not None:
        name, broken, judged = binding
        share = f"{broken} of {judged} measured trials"
        console.print(Text(f"The limit that binds: {metric_label(name)}, not met by {share}."))
    miss = nearest_miss(closing.searched)
    if miss is None:
        console.print(Text("No trial was measured, so no limit can be said to bind."))
        return
    console.print(Text(_miss_text(miss)))
    console.print(Text(f"Its changes: {trial_changes(miss.trial, baseline_of(closing.trials))}"))
    _print_relaxations(console, closing)


def _print_relaxations(console: Console, closing: Closing) -> None:
    least = least_relaxation(closing.searched)
    best = best_relaxation(closing.searched, maximise=closing.study.maximise)
    if least is None or best is None:
        console.print(Text("No single limit, relaxed alone, would let a measured trial meet all the others."))
        return
    console.print(Text(f"Least to relax: {_relaxation_text(closing, least)}"))
    if best != least:
        console.print(Text(f"For the best of what was seen: {_relaxation_text(closing, best)}"))


def _relaxation_text(closing: Closing, relaxation: Relaxation) -> str:
    baseline = baseline_of(closing.trials)
    reference = None if baseline is None or baseline is relaxation.trial else baseline.value
    score = relaxation.trial.score
    worth = "" if score is None else f" with {value_text(score, reference)}"
    doubt = "" if relaxation.is_sure else "; that is what was seen of a run too short to be sure of more"
    return (
        f"{metric_label(relaxation.name)} from {metric_value(relaxation.name, relaxation.limit)} to "
        f"{metric_value(relaxation.name, relaxation.needed)} (+{relaxation.percent:.1f} %) would let "
        f"#{relaxation.trial.number}{worth} meet every limit{doubt}: --slo {relaxation.name}={relaxation.needed:g}"
    )


def _miss_text(miss: NearestMiss) -> str:
    told = ", ".join(limit_text(constraint) for constraint in miss.not_met)
    over = f"{miss.excess_percent:.1f} % over its worst limit" if miss.excess_percent else "too close to call"
    return f"Nearest: #{miss.trial.number} ({miss.trial.state}), {told}; {over}."


def _print_places(console: Console, closing: Closing, best: TrialRecord | None) -> None:
    commands = closing.commands
    heading(console, "next")
    if closing.ended is StudyEnd.TIME_BUDGET and commands.resume is not None:
        console.print(Text("The time budget is used up. Go on with:"))
        copyable(console, f"  {commands.resume}")
    rows = [("record", closing.storage_display), ("logs", str(closing.record_folder))]
    if best is not None:
        rows = [("export", commands.export()), ("details", commands.show(best.number)), *rows]
        if closing.confirmation is None and best.role is not TrialRole.BASELINE:
            rows = [("confirm", commands.confirm()), *rows]
    labelled(console, [*rows, ("dashboard", commands.dashboard())])
