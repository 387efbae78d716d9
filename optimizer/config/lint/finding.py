"""What a lint rule has found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["error", "warning", "advice"]
"""`error`: vLLM refuses it, or no trial can meet it. `warning`: it runs and costs something. `advice`: worth a look."""


@dataclass(frozen=True, slots=True)
class LintFinding:
    """One anti-pattern, with the numbers it was seen in.

    Attributes:
        rule: Name of the rule, as `docs/lint-rules.md` lists it.
        severity: How bad it is.
        message: What is wrong, with the values.
        remedy: What to do about it.
        where: What to change: a flag of the command line, or the key of the space file.
    """

    rule: str
    severity: Severity
    message: str
    remedy: str
    where: str
