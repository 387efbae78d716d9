"""Reads the flags of an installed vLLM, which takes as long as importing it, and keeps them until it changes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from pydantic import ValidationError

from optimizer.core.errors import HostError
from optimizer.engine.vllm.catalogue import FlagCatalogue
from optimizer.engine.vllm.installation import VllmInstallation
from optimizer.host.files import write_json

_READING_LIMIT_S = 300.0
_SCRIPT = Path(str(resources.files("optimizer.engine.vllm"))) / "inside" / "flag_catalogue.py"


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/vllm-autotune`, in `~/.cache` where that is not set."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "vllm-autotune"


def load_catalogue(installation: VllmInstallation, *, notice: Callable[[str], None]) -> FlagCatalogue:
    """The flags of a vLLM, from the cache where they have been read before.

    Args:
        installation: The vLLM; its `stamp` changes when it is installed anew.
        notice: Is told that reading takes a while, and that the cache cannot be written.

    Raises:
        HostError: vLLM cannot be imported, or has no parser that is known.
    """
    cached = cached_catalogue(installation)
    if cached is not None:
        return cached
    file = _cache_file(installation)
    notice(f"reading the flags of vLLM {installation.version}, once for this version")
    text = _read(installation.python)
    catalogue = _understood(text, installation.python)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, json.loads(text))
    except OSError as error:
        notice(f"the flags of vLLM are read anew each time: cannot write {file}: {error.strerror}")
    return catalogue


def cached_catalogue(installation: VllmInstallation) -> FlagCatalogue | None:
    """The flags of a vLLM that have been read before; None when they have not, or what was kept is not whole."""
    try:
        return FlagCatalogue.model_validate_json(_cache_file(installation).read_bytes())
    except (OSError, ValidationError):
        return None


def _cache_file(installation: VllmInstallation) -> Path:
    """A file of its own for each version, Python, state of the installation, and way of reading it."""
    key = "\n".join((installation.version, installation.python, installation.stamp, _SCRIPT.read_text("utf-8")))
    return cache_folder() / f"flags-{installation.version}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _read(python: str) -> str:
    what = f"cannot read the flags of vLLM with {python}"
    try:
        done = subprocess.run(
            [python, str(_SCRIPT)],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_READING_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{what}: {error}", hint="see whether `import vllm` works there") from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise HostError(f"{what}: {last[0]}", hint=f"see what is wrong with: {python} {_SCRIPT}")
    return done.stdout


def _understood(text: str, python: str) -> FlagCatalogue:
    try:
        return FlagCatalogue.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HostError(
            f"cannot read the flags of vLLM with {python}: {where or 'its answer'}: {first['msg']}"
        ) from None
