"""The command line: `vllm serve`'s flags, of which some are obeyed and the other known ones ignored."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.core.engine_config import canonical_flag
from optimizer.engine.simulated.dtypes import DTYPES
from optimizer.engine.simulated.faults import FAULTS
from optimizer.engine.simulated.flag_names import SHORT_NAMES, SWITCHES, VALUES, WORD_LISTS

PROG = "python -m optimizer.engine.simulated"

_DESCRIPTION = """\
An HTTP server with vLLM's endpoints, log lines, exit codes and process tree around an analytic scheduler and KV pool.
It serves drills, demos and tests; its times are invented. Tokens are a fixed function of the prompt."""

_ENVIRONMENT = """\
environment:
  VLLM_API_KEY              bearer token that /v1 asks for
  VLLM_SERVER_DEV_MODE=1    adds POST /reset_prefix_cache
  VLLM_KEEP_ALIVE_ON_ENGINE_DEATH=1
                            stays up with /health 503 when EngineCore has died
  AUTOTUNE_SIM_SPEED        divides every step time (1)
  AUTOTUNE_SIM_DEVICE_GIB   memory of the fictitious GPU (16)
  AUTOTUNE_SIM_ACCEPTANCE   share of draft tokens that are right (0.6)
  AUTOTUNE_SIM_FAULTS       JSON list of {"fault": NAME} with optional "when": {flag: value}, "nth_launch": n,
                            "after_requests": n, "after_s": s; all that are given must hold. "amount" replaces the
                            number in a fault's text, "name" is the metric of missing_metric
  AUTOTUNE_SIM_STATE        file that counts launches; "nth_launch" needs it
"""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG]?)")
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was typed. `flags` holds every flag that was given, under its canonical name."""

    options: argparse.Namespace
    flags: Mapping[str, object]


def human_int(text: str) -> int:
    """An integer with vLLM's suffixes: `8k` is 8000, `8K` is 8192."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"invalid size: {text!r}")
    return int(float(match[1]) * _SUFFIXES[match[2]])


def human_int_or_auto(text: str) -> int:
    """As `human_int`; `auto` and `-1` are -1."""
    return -1 if text in ("auto", "-1") else human_int(text)


def parse_command_line(argv: Sequence[str]) -> CommandLine:
    """Parses vLLM's spelling of flags; ends the process with 2 and vLLM's words when one is unknown."""
    words = [_normalise(word) for word in argv]
    if words and words[0] == "serve":
        del words[0]
    words, dotted = _split_dotted(words)
    options = build_parser().parse_args(words)
    flags: dict[str, object] = {
        canonical_flag(name): value
        for name, value in vars(options).items()
        if value is not None and name != "model_tag"
    }
    return CommandLine(options, flags | dotted)


def _normalise(word: str) -> str:
    """`-` for `_` in a flag's name, and the long name for `-cc.key`; values stay as they are."""
    if word.startswith("-cc."):
        word = SHORT_NAMES["-cc"] + word.removeprefix("-cc")
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return "--" + canonical_flag(name) + equals + value


def _split_dotted(words: list[str]) -> tuple[list[str], dict[str, object]]:
    """Takes `--flag.key value` and `--flag.key=value` out of the words, for flags that take JSON."""
    rest: list[str] = []
    dotted: dict[str, object] = {}
    pending = iter(words)
    for word in pending:
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and "." in name and name.partition(".")[0] in VALUES | {"speculative-config"}:
            dotted[name] = value if equals else next(pending, "")
        else:
            rest.append(word)
    return rest, dotted


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Room for vLLM's long flag names, and the epilog as it is written."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=118)


class _Switch(argparse.Action):
    """A flag without a word; `--no-x` and `--disable-x` turn it off."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=None, **kwargs)

    def __call__(self, _parser: object, namespace: object, _values: object, option_string: str | None = None) -> None:
        negations = [s for s in self.option_strings[1:] if s.startswith(("--no-", "--disable-"))]
        setattr(namespace, self.dest, option_string not in negations)


def _switch_spellings(name: str) -> list[str]:
    spellings = [f"--{name}", f"--no-{name}"]
    if name.startswith("enable-"):
        spellings.append("--disable-" + name.removeprefix("enable-"))
    return spellings + [short for short, long in SHORT_NAMES.items() if long == f"--{name}"]


def build_parser() -> argparse.ArgumentParser:
    """The parser of all flags."""
    faults = "\n".join(f"  {fault.value:<16}{kind.description}" for fault, kind in FAULTS.items())
    known = len(SWITCHES | VALUES | WORD_LISTS)
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage=f"{PROG} [serve] [MODEL] [--model MODEL] [flags of vllm serve]",
        description=_DESCRIPTION,
        epilog=f"{known} more flags of vllm serve are accepted and ignored; an unknown one exits with 2.\n\n"
        f"{_ENVIRONMENT}\nfaults:\n{faults}",
        formatter_class=_HelpFormatter,
    )
    _add_obeyed(parser)
    for name in sorted(SWITCHES):
        parser.add_argument(*_switch_spellings(name), action=_Switch, help=argparse.SUPPRESS)
    for name in sorted(VALUES):
        shorts = [short for short, long in SHORT_NAMES.items() if long == f"--{name}"]
        parser.add_argument(f"--{name}", *shorts, help=argparse.SUPPRESS)
    for name in sorted(WORD_LISTS):
        parser.add_argument(f"--{name}", nargs="+", help=argparse.SUPPRESS)
    return parser


def _add_obeyed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="same as --model")
    add = parser.add_argument_group("flags that the simulation obeys").add_argument
    add("--model", help="folder with a config.json that gives the shape; without one, a 1.1B shape")
    add("--host", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    add("--port", type=int, metavar="N", help="port to listen on (8000)")
    add("--served-model-name", nargs="+", metavar="NAME", help="names that requests may use (MODEL)")
    add("--api-server-count", "-asc", type=int, metavar="N", help="API servers that the log tells of; one answers (1)")
    add("--api-key", nargs="+", metavar="KEY", help="bearer tokens that /v1 asks for")
    add("--max-num-seqs", type=int, metavar="N", help="sequences that run at once (256)")
    add("--max-num-batched-tokens", type=human_int, metavar="N", help="tokens that one step computes at most (2048)")
    add(
        "--max-model-len",
        type=human_int_or_auto,
        metavar="N",
        help="prompt and output of one request; auto fits it to the pool",
    )
    add(
        "--gpu-memory-utilization",
        "--device-memory-utilization",
        type=float,
        metavar="X",
        help="share of the GPU to use (0.92)",
    )
    add("--kv-cache-memory-bytes", type=human_int, metavar="N", help="size of the KV pool, in place of the share")
    add("--num-gpu-blocks-override", type=int, metavar="N", help="blocks in the KV pool, in place of either")
    add("--block-size", type=int, metavar="N", help="tokens a KV block holds (16)")
    add(*_switch_spellings("enable-prefix-caching"), action=_Switch, help="reuse the KV of shared prefixes (on)")
    add("--dtype", choices=tuple(DTYPES), help="type of the weights, and of a KV cache without its own (auto)")
    add("--kv-cache-dtype", metavar="TYPE", help="type of the KV cache (auto: that of the weights)")
    add("--speculative-config", metavar="JSON", help="draft tokens for each decoding sequence")
    add("--spec-method", metavar="NAME", help="the same, one by one")
    add("--spec-model", metavar="MODEL", help=argparse.SUPPRESS)
    add("--spec-tokens", type=int, metavar="N", help=argparse.SUPPRESS)
    add("--stream-interval", type=int, metavar="N", help="tokens in each chunk of a stream after the first (1)")
    add(*_switch_spellings("enable-force-include-usage"), action=_Switch, help="usage in every stream (off)")
    add(*_switch_spellings("skip-tokenizer-init"), action=_Switch, help="prompts as token ids only, empty text")
