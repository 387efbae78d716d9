"""The errors that end a command, and the exit code each one stands for.

    AutotuneError              1   a fault of ours
      InputError               2   what the user gave is wrong
      NothingFeasible          3   the study has no setting that meets the limits
      HostError                4   this host cannot do it: vLLM, database, GPU, port
      Interrupted            130   Ctrl-C or SIGTERM

Trouble inside a trial is no error: it is a `Failure` value (see `core.failure`), because a study goes on after it.
"""

from __future__ import annotations


class AutotuneError(Exception):
    """A message for a person: what is wrong, the value, where it came from; and a hint that says what to do.

    Args:
        message: What is wrong, with the offending value and its origin (file and key, or option).
        hint: What to do about it; printed on a line of its own.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InputError(AutotuneError):
    """A wrong option, file, flag or value: nothing was started."""

    exit_code = 2


class NothingFeasible(AutotuneError):
    """No trial of the study met its limits, so there is no best setting to give."""

    exit_code = 3


class HostError(AutotuneError):
    """The host cannot do what was asked: engine missing, database not writable, no port or GPU to be had."""

    exit_code = 4


class Interrupted(AutotuneError):
    """The user (or the system) asked us to stop; the record is complete and the study can be resumed."""

    exit_code = 130
