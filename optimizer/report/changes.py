"""Which flags of a trial differ from the baseline's."""

from __future__ import annotations

import shlex

from optimizer.core.engine_config import EngineConfig
from optimizer.core.record import TrialRecord
from optimizer.core.trial import TrialRole
from optimizer.engine.vllm.argv import flag_words
from optimizer.report.secrets import is_secret_name


def baseline_of(trials: list[TrialRecord]) -> TrialRecord | None:
    """The baseline among a study's trials, if it was run."""
    return next((trial for trial in trials if trial.role is TrialRole.BASELINE), None)


def changed_flags(config: EngineConfig, baseline: EngineConfig | None) -> str:
    """Flags that another value is set for than in the baseline, as they are typed; then those that are not set.

    With no baseline every flag counts as changed.

    Returns:
        Such as `--max-num-seqs 64 (unset: --block-size)`; empty when nothing differs.
    """
    before = {} if baseline is None else baseline.flags
    changed = {
        name: value
        for name, value in config.flags.items()
        if not is_secret_name(name) and (name not in before or before[name] != value)
    }
    unset = ", ".join(f"--{name}" for name in before if name not in config.flags)
    return f"{shlex.join(flag_words(changed))} {f'(unset: {unset})' if unset else ''}".strip()


def trial_changes(trial: TrialRecord, baseline: TrialRecord | None) -> str:
    """A trial's setting against the baseline's, in one line.

    A trial that was never resolved to a config is told by its parameters; the baseline itself by `as given`.
    """
    if trial.role is TrialRole.BASELINE:
        return "flags as given"
    if trial.config is None:
        return " ".join(f"{name}={value}" for name, value in trial.params.items()) or "no searched flag"
    reference = None if baseline is None else baseline.config
    return changed_flags(trial.config, reference) or "flags as the baseline"
