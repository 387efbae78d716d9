"""The script that reads vLLM's parser, on parsers built by hand: what it makes of each kind of flag."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Literal

import pytest

from optimizer.engine.vllm.catalogue import FlagCatalogue
from optimizer.engine.vllm.inside.flag_catalogue import describe_parser


@dataclass
class Inner:
    deep: bool = False


@dataclass
class Config:
    mode: Literal["fast", "slow"] = "fast"
    steps: int | None = None
    share: float = 0.5
    name: str = ""
    inner: Inner = field(default_factory=Inner)
    open: dict[str, int] | str = ""
    hidden: int = field(init=False, default=0)


def size(text: str) -> int:
    return int(float(text[:-1]) * 1000) if text.endswith("k") else int(text)


def size_or_auto(text: str) -> int:
    return -1 if text == "auto" else size(text)


def optional(convert):
    def inner(text: str):
        return None if text in ("", "None") else convert(text)

    return inner


def parsed_config(text: str, cls: type = Config) -> object:
    return cls(**json.loads(text))


def described(*names: str, configs: dict[str, type] | None = None, **kwargs):
    parser = argparse.ArgumentParser()
    parser.add_argument(*names, **kwargs)
    flags = describe_parser(parser, configs or {})
    catalogue = FlagCatalogue.model_validate({"version": "0", "variables": [], "flags": flags})
    (flag,) = catalogue.flags
    return flag


@pytest.mark.parametrize(
    ("convert", "kind", "nullable"),
    [
        (None, "text", False),
        (str, "text", False),
        (int, "whole", False),
        (float, "number", False),
        (size, "size", False),
        (size_or_auto, "size_or_auto", False),
        (json.loads, "json", False),
        (optional(int), "whole", True),
        (optional(str), "text", True),
        (optional(size), "size", True),
        (optional(json.loads), "json", True),
        (parsed_config, "json", False),
        (lambda text: json.loads(text) if text.startswith("{") else text, "json_or_text", False),
        (lambda text: text.split(","), "any", False),
        (lambda text: {"auto": 1}[text], "any", False),
    ],
)
def test_what_a_word_must_be_is_told_by_trying_the_converter(convert, kind, nullable):
    flag = described("--some-flag", type=convert)
    assert (flag.name, flag.kind, flag.nullable, flag.words) == ("some-flag", kind, nullable, "one")


@pytest.mark.parametrize(
    ("nargs", "words"), [("+", "many"), ("*", "many"), (2, "many"), ("?", "optional"), (None, "one")]
)
def test_how_many_words_follow(nargs, words):
    assert described("--x", nargs=nargs).words == words


def test_switches_and_what_turns_them_off():
    flag = described("--enable-x", "-ex", action=argparse.BooleanOptionalAction)
    assert (flag.on, flag.off, flag.short) == (("--enable-x",), ("--no-enable-x",), ("-ex",))
    assert (flag.kind, flag.words) == ("switch", "none")
    assert described("--x", action="store_true").off == ()


def test_a_negation_that_the_parser_keeps_out_of_its_action_is_found():
    # As vLLM 0.33 does, so that its help stays short.
    parser = argparse.ArgumentParser()
    action = parser.add_argument("--enable-x", "--disable-x", action=argparse.BooleanOptionalAction)
    action.option_strings = ["--enable-x", "--disable-x"]
    (flag,) = describe_parser(parser, {})
    assert flag["on"] == ["--enable-x"]
    assert set(flag["off"]) == {"--no-enable-x", "--disable-x", "--no-disable-x"}


def test_keys_of_a_dataclass_are_known_down_to_the_last():
    keys = described("--some-config", type=parsed_config).keys
    assert keys is not None
    assert set(keys) == {"mode", "steps", "share", "name", "inner", "open"}
    assert (keys["mode"].kind, keys["mode"].choices) == ("text", ("fast", "slow"))
    assert [keys[name].kind for name in ("steps", "share", "name", "open")] == ["whole", "number", "text", "any"]
    assert keys["inner"].keys is not None
    assert keys["inner"].keys["deep"].kind == "switch"


def test_a_bare_json_flag_gets_the_keys_of_the_config_of_its_name():
    assert described("--config-x", type=json.loads, configs={"configx": Config}).keys is not None
    assert described("--config-y", type=json.loads, configs={"configx": Config}).keys is None


def test_choices_defaults_and_another_spelling():
    flag = described("--kind", "--sort", choices=["a", "b", None], default="a", help="What it is.\n\nMore.")
    assert (flag.choices, flag.default, flag.help) == (("a", "b", None), "a", "What it is.")
    assert flag.on == ("--kind", "--sort")
    assert described("--x", default=Config()).default is None
    assert described("--x", type=lambda text: text.lower().replace("-", "_")).folds
