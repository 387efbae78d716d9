"""The lists for where no vLLM is installed, against the parsers that they were taken from."""

from __future__ import annotations

import pytest

from optimizer.config import parse_serve_command
from optimizer.config.flag_tables import SAME_FLAGS, STATIC_TABLES, tables_of
from optimizer.engine.vllm.catalogue import FlagCatalogue
from tests.flag_catalogues import RELEASES, release

KINDS = ("switches", "lists", "values", "optional")


@pytest.mark.parametrize("version", RELEASES)
def test_every_flag_of_every_release_is_listed_under_its_kind(version):
    tables = tables_of(release(version))
    for kind in KINDS:
        spellings = getattr(tables, kind) - SAME_FLAGS.keys()
        assert spellings <= getattr(STATIC_TABLES, kind), kind
    assert tables.sizes <= STATIC_TABLES.sizes
    assert tables.shorts.items() <= STATIC_TABLES.shorts.items()


def test_nothing_is_listed_that_no_release_has():
    known = {name for version in RELEASES for kind in KINDS for name in getattr(tables_of(release(version)), kind)}
    for kind in KINDS:
        assert getattr(STATIC_TABLES, kind) <= known


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("no-enforce-eager", "enforce-eager"),
        ("disable-prefix-caching", "enable-prefix-caching"),
        ("no-enable-prefix-caching", "enable-prefix-caching"),
        ("enable-custom-all-reduce", "disable-custom-all-reduce"),
        ("disable-custom-all-reduce", None),
        ("disable-log-stats", None),
        ("max-num-seqs", None),
    ],
)
def test_what_turns_a_switch_off(name, flag):
    for tables in (STATIC_TABLES, *(tables_of(release(version)) for version in RELEASES)):
        assert tables.turned_off(name) == flag


def catalogue_with(words: str) -> FlagCatalogue:
    flag = {"name": "flag-of-tomorrow", "on": ["--flag-of-tomorrow"], "off": [], "short": [], "kind": "text"}
    more = {
        "words": words,
        "nullable": False,
        "choices": None,
        "folds": False,
        "default": None,
        "help": "",
        "keys": None,
    }
    return FlagCatalogue.model_validate({"version": "9", "variables": [], "flags": [{**flag, **more}]})


def test_an_installed_vllm_tells_how_many_words_a_new_flag_takes():
    text = "vllm serve --flag-of-tomorrow a m"
    read = {
        words: parse_serve_command(text, origin="x", tables=tables_of(catalogue_with(words)))
        for words in ("one", "many")
    }
    assert (read["one"].model, read["one"].flags) == ("m", {"flag-of-tomorrow": "a"})
    assert (read["many"].model, read["many"].flags) == (None, {"flag-of-tomorrow": ["a", "m"]})
    switch = parse_serve_command(
        "vllm serve --flag-of-tomorrow m", origin="x", tables=tables_of(catalogue_with("none"))
    )
    assert (switch.model, switch.flags) == ("m", {"flag-of-tomorrow": True})
    assert parse_serve_command(text, origin="x").flags == {"flag-of-tomorrow": ["a", "m"]}
