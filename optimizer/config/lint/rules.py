"""All rules, and the one function that applies them."""

from __future__ import annotations

from typing import Final

from optimizer.config.lint import (
    batching,
    graphs,
    measuring,
    memory,
    parallelism,
    prefix_cache,
    quality,
    searching,
    speculation,
)
from optimizer.config.lint.facts import Facts
from optimizer.config.lint.finding import LintFinding
from optimizer.config.lint.rule import LintRule
from optimizer.config.lint.subject import LintSubject

RULES: Final[tuple[LintRule, ...]] = (
    *memory.RULES,
    *batching.RULES,
    *graphs.RULES,
    *prefix_cache.RULES,
    *speculation.RULES,
    *parallelism.RULES,
    *quality.RULES,
    *measuring.RULES,
    *searching.RULES,
)
"""In the order of `docs/lint-rules.md`."""

_ORDER: Final = ("error", "warning", "advice")


def lint(subject: LintSubject) -> list[LintFinding]:
    """What is wrong with one configuration or space: errors first, then warnings, then advice."""
    facts = Facts.of(subject)
    findings = [finding for rule in RULES for finding in rule.findings(facts)]
    return sorted(findings, key=lambda finding: _ORDER.index(finding.severity))
