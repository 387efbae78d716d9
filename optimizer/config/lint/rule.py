"""A lint rule: its name, what it means, why it is one, what to do, and how it is seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.finding import LintFinding, Severity


@dataclass(frozen=True, slots=True)
class Hit:
    """One place where a rule fires.

    Attributes:
        message: What is wrong, with the values.
        where: What to change.
        remedy: What to do, where the numbers tell more than the rule's own remedy.
        severity: Where it differs from the rule's own: a range that also holds better values is advice, because the
            search can avoid what is bad in it.
    """

    message: str
    where: str
    remedy: str | None = None
    severity: Severity | None = None


Check: TypeAlias = Callable[[Facts], Iterator[Hit]]
"""Looks at one configuration or space; yields nothing when a fact that it needs is not known."""


@dataclass(frozen=True, slots=True)
class LintRule:
    """One anti-pattern.

    Attributes:
        name: What findings and `docs/lint-rules.md` call it.
        severity: How bad it is in one configuration.
        means: What it looks like, in a sentence.
        why: What vLLM or the measurement does then.
        remedy: What to do about it.
        check: Looks for it.
    """

    name: str
    severity: Severity
    means: str
    why: str
    remedy: str
    check: Check

    def findings(self, facts: Facts) -> Iterator[LintFinding]:
        """Each place where it fires."""
        for hit in self.check(facts):
            yield LintFinding(
                self.name, hit.severity or self.severity, hit.message, hit.remedy or self.remedy, hit.where
            )
