"""What a flag may be: one value of a command line, several of a space."""

from __future__ import annotations

from optimizer.config.lint.facts import Facts
from optimizer.config.lint.setting import Origin, shown
from tests.unit.config.lint.subjects import NGRAM, choice, command, number, space, switch, traffic


def test_a_range_is_its_ends_and_a_choice_all_its_values():
    facts = Facts.of(space({"a": number("int", 4, 128), "b": choice(32, 16, "auto"), "c": switch()}))
    assert facts.given("a").values == (4, 128)
    assert (facts.given("b").lowest, facts.given("b").highest) == (16, 32)
    assert facts.given("c").values == (False, True)
    assert facts.given("d") is None


def test_a_bundle_of_flags_leaves_some_unset():
    setting = Facts.of(space({"speculation": NGRAM})).given("speculative-config.method")
    assert (setting.values, setting.optional, setting.is_searched) == (("ngram",), True, True)


def test_true_is_not_one():
    assert Facts.of(command("--enforce-eager")).given("enforce-eager").is_always(True)
    assert not Facts.of(command("-O1")).given("optimization-level").is_always(True)


def test_the_default_is_told_as_one():
    setting = Facts.of(command("", device="cpu")).setting("max-num-seqs")
    assert (setting.origin, setting.is_given) == (Origin.DEFAULT, False)
    assert setting.up_to() == "max-num-seqs is not set and 128 by default"


def test_no_default_is_guessed_where_cards_of_one_size_differ():
    def seqs(gib):
        return Facts.of(command("", device_memory_bytes=gib * 2**30)).setting("max-num-seqs")

    assert seqs(80) is None, "an A100 takes 256 and an H100 takes 1024"
    assert [seqs(gib).highest for gib in (24, 140, 180)] == [256, 1024, 1024]


def test_most_running_is_the_tightest_limit():
    def running(text, **known):
        return Facts.of(command(text, **known)).most_running()

    assert running("") is None
    assert running("--max-num-seqs 64") == 64
    assert running("--max-num-seqs 64 --max-num-active-seqs 8") == 8
    assert running("--max-num-seqs 64", workload=traffic(in_flight=32)) == 32


def test_values_are_shown_as_people_write_them():
    assert [shown(value) for value in (True, 1048576, 131072.0, 0.99, "auto")] == [
        "true",
        "1048576",
        "131072",
        "0.99",
        "auto",
    ]
