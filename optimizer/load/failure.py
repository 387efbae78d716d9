"""How load goes wrong: one answer that cannot be used, or a run that yields nothing."""

from __future__ import annotations


class StreamBroken(Exception):
    """One answer cannot be used; the text says why and becomes the request's error."""


class LoadFailed(Exception):
    """No request was served, so there is nothing to measure. The trial's pipeline turns it into a `Failure`.

    Args:
        message: What was tried and did not come about.
        evidence: What the failed requests reported, most frequent first.
    """

    def __init__(self, message: str, evidence: tuple[str, ...]) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence


class ClientSpoiled(Exception):
    """The load generator failed, and the engine is not to blame. The trial's pipeline turns it into a `Failure`.

    Args:
        message: What happened.
        evidence: What the process said last.
    """

    def __init__(self, message: str, evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.evidence = evidence
