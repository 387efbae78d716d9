"""Which names stand for secrets: their values must reach no record, log or export."""

from __future__ import annotations

import re

_WORD = re.compile(r"(TOKEN|KEY|KEYS|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$")
_SETTING = re.compile(
    r"((api|access|secret|private|auth|hf|bearer|account)[-_]?(key|token)|secret|password|passwd|credentials?)$"
)
_USER_INFO = re.compile(r"://[^/\s@]+:[^/\s@]+@")


def is_secret_variable(name: str, value: str = "") -> bool:
    """Whether an environment variable looks like a secret: by a word of its name, or a password in a URL.

    >>> is_secret_variable("HF_TOKEN"), is_secret_variable("TOKENIZERS_PARALLELISM")
    (True, False)
    """
    return any(_WORD.search(word) for word in name.upper().split("_")) or bool(_USER_INFO.search(value))


def is_secret_setting(name: str) -> bool:
    """Whether a flag, or a key of a JSON flag, looks like a secret.

    >>> is_secret_setting("hf-token"), is_secret_setting("max-num-batched-tokens")
    (True, False)
    """
    return bool(_SETTING.search(name.lower()))
