"""Keeps tokens and passwords out of whatever is shown, written or exported."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

HIDDEN = "***"

_SECRET_NAME = re.compile(r"(^|[_-])(api[_-]?key|key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]*@", re.IGNORECASE)
_SECRET_OPTION = re.compile(r"(?P<head>--(?:api[-_]key|hf[-_]token)(?:\s+|=))(?P<value>'[^']*'|\"[^\"]*\"|[^\s'\"]+)")
_ASSIGNMENT = re.compile(r"(?P<name>\b[A-Za-z_]\w*)=(?P<value>[^\s'\"]+)")
_SHORTEST_SECRET = 6


def is_secret_name(name: str) -> bool:
    """Whether an environment variable or a flag of this name carries a secret.

    >>> is_secret_name("HF_TOKEN"), is_secret_name("api-key"), is_secret_name("max-num-batched-tokens")
    (True, True, False)
    """
    return _SECRET_NAME.search(name) is not None


def hide_secrets(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text with passwords in URLs, values of secret options and variables, and this environment's secrets masked.

    Args:
        text: A command, an error, a log line.
        environ: Where known secrets are looked up by name; `os.environ` when None.

    >>> hide_secrets("postgresql://ann:pw@db/tuning", environ={})
    'postgresql://ann:***@db/tuning'
    """
    known = os.environ if environ is None else environ
    for name, value in known.items():
        if is_secret_name(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
    text = _URL_PASSWORD.sub(rf"\g<head>:{HIDDEN}@", text)
    text = _SECRET_OPTION.sub(rf"\g<head>{HIDDEN}", text)
    return _ASSIGNMENT.sub(_mask_assignment, text)


def hide_argument_secrets(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """The words of a command line, masked as `hide_secrets` does; also the word after a secret option.

    >>> hide_argument_secrets(["serve", "--api-key", "abc"], environ={})
    ['serve', '--api-key', '***']
    """
    before = ("", *argv)
    return [
        HIDDEN if option.startswith("--") and is_secret_name(option) else hide_secrets(word, environ)
        for option, word in zip(before, argv, strict=False)
    ]


def _mask_assignment(match: re.Match[str]) -> str:
    return f"{match['name']}={HIDDEN}" if is_secret_name(match["name"]) else match[0]
