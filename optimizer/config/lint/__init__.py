"""Anti-patterns of launch flags, search spaces and workloads, as named rules with reason and remedy."""

from optimizer.config.lint.finding import LintFinding, Severity
from optimizer.config.lint.rules import RULES, lint
from optimizer.config.lint.subject import LintSubject, subject_of_command, subject_of_study

__all__ = [
    "RULES",
    "LintFinding",
    "LintSubject",
    "Severity",
    "lint",
    "subject_of_command",
    "subject_of_study",
]
