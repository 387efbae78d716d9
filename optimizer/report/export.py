"""The launch flags of one trial, in the forms that people and scripts paste."""

from __future__ import annotations

import shlex
from dataclasses import replace

from optimizer.core.confirmation import study_trials
from optimizer.core.engine_config import EngineConfig, FlagValue
from optimizer.core.errors import InputError, NothingFeasible
from optimizer.core.recommendation import Recommendation, chosen_trial
from optimizer.core.record import StudyRecord, TrialRecord
from optimizer.engine.vllm.argv import flag_words, serve_command
from optimizer.report.changes import baseline_of
from optimizer.report.secrets import is_secret_name

EXPORT_HOST = "127.0.0.1"
EXPORT_PORT = 8000
_PROGRAM_WORDS = 3
"""`python -m module`"""


def choose_trial(
    study: StudyRecord, trials: list[TrialRecord], wanted: int | None, recommendation: Recommendation | None = None
) -> TrialRecord:
    """The trial to export: the one asked for, or the recommended one.

    Raises:
        NothingFeasible: None was asked for and no trial is feasible.
        InputError: The trial asked for does not exist, or was never measured: nobody knows whether it serves.
    """
    if wanted is None:
        best = chosen_trial(trials, recommendation, maximise=study.maximise)
        if best is None:
            raise NothingFeasible(
                f"study {study.name!r} has no feasible trial to export ({len(trials)} trials)",
                hint="give more --trials to `run`, relax a limit in a new study, or name a measured trial with --trial",
            )
        return best
    chosen = next((trial for trial in trials if trial.number == wanted), None)
    if chosen is None:
        last = max((trial.number for trial in study_trials(trials)), default=None)
        known = "it has none yet" if last is None else f"it has trials 0 to {last}"
        raise InputError(f"--trial {wanted}: study {study.name!r} has no such trial", hint=known)
    if chosen.score is None or chosen.config is None:
        raise InputError(
            f"--trial {wanted}: this trial is {chosen.state} and has no measurement",
            hint="choose a measured trial; `status` lists them",
        )
    return chosen


def exported_flags(config: EngineConfig) -> dict[str, FlagValue]:
    """Every flag of the setting, the fixed ones included, that may leave this host."""
    return {name: value for name, value in config.flags.items() if not is_secret_name(name)}


def launch_flags(config: EngineConfig) -> list[str]:
    """The flags as words for a deployment of the model.

    `--load-format dummy` stays out: it fills a shape with random weights to measure it, and no deployment wants that.
    """
    flags = exported_flags(config)
    if flags.get("load-format") == "dummy":
        del flags["load-format"]
    return flag_words(flags)


def exported_env(config: EngineConfig) -> dict[str, str]:
    """The variables that the setting needs on top of the inherited ones; secrets are for the shell to hold."""
    return {name: value for name, value in config.env.items() if not is_secret_name(name)}


def command_argv(trial: TrialRecord, config: EngineConfig) -> list[str]:
    """The command that starts this setting with the engine it was measured on, listening on 127.0.0.1:8000.

    Nothing that was for one launch only is in it: no API key, no nonce for a model name, no port of that day.
    """
    argv = next((attempt.argv for attempt in reversed(trial.attempts) if attempt.argv), ())
    open_config = replace(config, flags=exported_flags(config))
    # Somebody else's engine was started by no words of ours; the flags are vLLM's as far as anybody knows.
    if config.engine != "simulated":
        return serve_command(argv[0] if argv else "python3", open_config)
    address = ["--host", EXPORT_HOST, "--port", str(EXPORT_PORT)]
    return [*argv[:_PROGRAM_WORDS], "--model", config.model, *flag_words(open_config.flags), *address]


def command_text(trial: TrialRecord, config: EngineConfig) -> str:
    """The same as shell text: variables, program, then a line for each option."""
    words = command_argv(trial, config)
    first_option = next(place for place, word in enumerate(words) if word.startswith("--"))
    lines = [f"{name}={shlex.quote(value)}" for name, value in exported_env(config).items()]
    lines.append(shlex.join(words[:first_option]))
    lines += [f"  {shlex.join(group)}" for group in by_option(words[first_option:])]
    return " \\\n".join(lines)


def improvement(study: StudyRecord, trial: TrialRecord, trials: list[TrialRecord]) -> float | None:
    """How many times better than the baseline: value over baseline, or baseline over value when less is better."""
    baseline = baseline_of(trials)
    if baseline is None or trial.value is None or baseline.value is None:
        return None
    over, under = (trial.value, baseline.value) if study.maximise else (baseline.value, trial.value)
    return over / under if under else None


def by_option(words: list[str]) -> list[list[str]]:
    """The words of a command line in groups, each an option with its values."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") and not _is_number(word):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()
