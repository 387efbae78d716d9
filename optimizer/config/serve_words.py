"""Takes a pasted command apart: environment, wrapper (docker, python -m, ...), model, and the words of vLLM's flags."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from optimizer.core.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_REDIRECTION = re.compile(r"(\d|&)?>{1,2}.*|<.*")
_TYPOGRAPHY: Final = str.maketrans(
    {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "\u00a0": " ", "\u2013": "--", "\u2014": "--"}
)
"""What web pages make of quotes, blanks and double dashes."""
_WRAPPERS: Final = frozenset({"$", "sudo", "nohup", "env", "exec", "time", "uvx", "export"})
_CONTAINER_TOOLS: Final = frozenset({"docker", "podman", "nerdctl"})
_CONTAINER_SWITCH = re.compile(
    r"-[ditPq]+|--(rm|detach|interactive|tty|init|privileged|read-only|publish-all|no-healthcheck|oom-kill-disable"
    r"|sig-proxy|quiet)"
)
_OTHER_PROGRAMS: Final = frozenset({"bench", "chat", "complete", "collect-env", "launch", "run-batch", "snapshot"})
_API_SERVER: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
_CLI: Final = ("vllm", "vllm.entrypoints.cli.main")
HINT: Final = (
    "paste a command such as `vllm serve MODEL --max-num-seqs 64`, `python -m vllm.entrypoints.openai.api_server …`, "
    "`docker run … vllm/vllm-openai …`, or the flags alone"
)


@dataclass(frozen=True, slots=True)
class ServeWords:
    """A command without what wraps it.

    Attributes:
        env: Environment variables that the command sets; None for one it passes on from outside.
        words: What vLLM itself gets: flags, their values, and perhaps the model.
        takes_model: Whether a word that is no flag may be the model.
        bare: Whether flags alone were given, without a program.
    """

    env: dict[str, str | None]
    words: tuple[str, ...]
    takes_model: bool
    bare: bool = False


def serve_words(text: str, *, origin: str) -> ServeWords:
    """Finds vLLM's own words in a pasted command.

    Raises:
        InputError: The text is empty, a quote is not closed, or it starts something else than vLLM's server.
    """
    words = _shell_words(text, origin)
    if not words:
        raise InputError(f"{origin}: the command is empty", hint=HINT)
    env = _taken_environment(words)
    if not words:
        raise InputError(f"{origin}: the command sets variables and starts nothing", hint=HINT)
    for index, word in enumerate(words):
        if word in ("&&", ";", "||"):
            raise InputError(f"{origin}: {word!r} joins a second command", hint="paste the one command that serves")
        if word in ("|", "&") or _REDIRECTION.fullmatch(word):
            words = words[:index]
            break
    if not words:
        raise InputError(f"{origin}: the command redirects and starts nothing", hint=HINT)
    return _unwrapped(words, env, origin)


def _taken_environment(words: list[str]) -> dict[str, str | None]:
    """Takes assignments and wrappers such as sudo off the front, and gives the assignments."""
    env: dict[str, str | None] = {}
    while words:
        assignment = _ASSIGNMENT.fullmatch(words[0])
        if assignment is not None:
            env[assignment[1]] = assignment[2].removesuffix(";")
        elif words[0] == "uv" and words[1:2] == ["run"]:
            words.pop(0)
        elif words[0] not in _WRAPPERS and words[0] not in ("&&", ";"):
            break
        words.pop(0)
    return env


def _shell_words(text: str, origin: str) -> list[str]:
    joined = re.sub(r"\\[ \t]*\r?\n", " ", text.translate(_TYPOGRAPHY)).strip()
    joined = joined.rstrip("\\")
    try:
        words = shlex.split(joined)
    except ValueError:
        quote = "'" if joined.count("'") % 2 else '"'
        start = joined.rfind(quote)
        raise InputError(
            f"{origin}: a quote is not closed: {joined[start : start + 40]}", hint="close it, or remove it"
        ) from None
    # A backslash that lost its line end in a paste leaves a blank word, or a blank in front of a flag.
    words = [word.lstrip() if word.lstrip().startswith("-") else word for word in words]
    return [word for word in words if not word or word.strip()]


def _unwrapped(words: list[str], env: dict[str, str | None], origin: str) -> ServeWords:
    first = words[0]
    program = PurePosixPath(first).name
    if first.startswith("-"):
        return ServeWords(env, tuple(words), takes_model=False, bare=True)
    if program in _CONTAINER_TOOLS:
        return _in_container(words, env, origin)
    if re.fullmatch(r"python(\d(\.\d+)?)?", program):
        return _python_module(words, env, origin)
    if program == "vllm":
        if words[1:2] != ["serve"]:
            found = words[1] if len(words) > 1 else "nothing"
            other = f": `vllm {found}` is another program, with flags of its own" if found in _OTHER_PROGRAMS else ""
            raise InputError(f"{origin}: expected `serve` after `vllm`, not {found!r}{other}", hint=HINT)
        return ServeWords(env, tuple(words[2:]), takes_model=True)
    raise InputError(f"{origin}: {first!r} does not start a vLLM server", hint=HINT)


def _python_module(words: list[str], env: dict[str, str | None], origin: str) -> ServeWords:
    rest = [word for word in words[1:] if word not in ("-u", "-O")]
    module = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else None
    if module in _API_SERVER:
        return ServeWords(env, tuple(rest[2:]), takes_model=False)
    if module in _CLI and rest[2:3] == ["serve"]:
        return ServeWords(env, tuple(rest[3:]), takes_model=True)
    found = module or (rest[0] if rest else words[0])
    today = ": it sent traffic to a server, as `vllm bench serve` does today" if "benchmark_" in found else ""
    raise InputError(f"{origin}: {found!r} is not vLLM's server module{today}", hint=HINT)


def _in_container(words: list[str], env: dict[str, str | None], origin: str) -> ServeWords:
    rest = words[1:]
    if rest[:1] == ["container"]:
        rest = rest[1:]
    if rest[:1] != ["run"]:
        found = rest[0] if rest else "nothing"
        raise InputError(f"{origin}: expected `run` after `{words[0]}`, not {found!r}", hint=HINT)
    rest = rest[1:]
    while rest and rest[0].startswith("-"):
        option, value = _container_option(rest)
        if option in ("-e", "--env"):
            name, given, content = value.partition("=")
            env[name] = content if given else None
    if not rest:
        raise InputError(f"{origin}: the command names no image", hint=HINT)
    image, *inside = rest
    if inside and PurePosixPath(inside[0]).name in ("vllm", "python", "python3"):
        return _unwrapped(inside, env, origin)
    if inside[:1] == ["-m"]:
        return _python_module(["python", *inside], env, origin)
    if "vllm" not in image:
        raise InputError(f"{origin}: image {image!r} does not look like one of vLLM", hint=HINT)
    if inside[:1] == ["serve"]:
        inside = inside[1:]
    return ServeWords(env, tuple(inside), takes_model=True)


def _container_option(words: list[str]) -> tuple[str, str]:
    """Takes one option and its value, if it has one, off the front."""
    word = words.pop(0)
    if _CONTAINER_SWITCH.fullmatch(word):
        return word, ""
    if not word.startswith("--") and len(word) > 2:
        return word[:2], word[2:]
    option, has_value, value = word.partition("=")
    if not has_value and words:
        value = words.pop(0)
    return option, value
