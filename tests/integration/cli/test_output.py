"""What a person sees: on a terminal, in a pipe, without colours, and 80 columns wide."""

from __future__ import annotations

import re

import pytest

from tests.drill import RUN, SPEED, write_space
from tests.driving import Driver
from tests.integration.cli.inside import DriverInside

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|4[0-7])(?:;\d+)*m")
COLUMNS = 80
STATUS = ("status", "--study", "drill")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a study of the two trials that every study has."""
    folder = tmp_path_factory.mktemp("output")
    write_space(folder)
    with_mark = Driver(folder, SPEED)
    yield with_mark
    with_mark.close()


@pytest.fixture(scope="module")
def seen(driver):
    """The study as it ran on a terminal of 80 columns."""
    run = driver.start_on_terminal(*RUN, "--trials", "2", columns=COLUMNS)
    done = run.finish()
    assert done.exit_code == 0, done.said
    return run


@pytest.fixture(scope="module")
def read(seen, driver):
    """What the reading commands say of it on such terminals."""
    commands = (("status",), STATUS, ("show", "1"))
    runs = {words: driver.start_on_terminal(*words, columns=COLUMNS) for words in commands}
    for words, run in runs.items():
        assert run.finish().exit_code == 0, words
    return runs


def wide_lines(text: str) -> list[str]:
    """Lines wider than the terminal, those to copy left out: these must not be broken."""
    lines = re.split(r"[\r\n]+", text)
    return [line for line in lines if len(line) > COLUMNS and not re.match(r"\s*(--|python -m|\w+ {2,}\S+$)", line)]


def test_a_terminal_shows_a_live_view_and_then_the_report(seen):
    assert COLOUR.search(seen.heard)
    for words in ("trial #0 (baseline), 1 of 2", "launching for", "trials left", "study drill: 2 of 2 trials"):
        assert words in seen.text, words


def test_nothing_but_what_is_to_be_copied_is_wider_than_the_terminal(seen, read):
    assert not wide_lines(seen.text)
    for words, run in read.items():
        wide = [line for line in wide_lines(run.text) if not re.match(r"  (argv|folder|engine): ", line)]
        assert not wide, words


def test_no_color_is_honoured(read, driver):
    coloured, plain = read[STATUS], driver.start_on_terminal(*STATUS, columns=COLUMNS, NO_COLOR="1")
    assert plain.finish().exit_code == 0
    assert COLOUR.search(coloured.heard)
    assert not COLOUR.search(plain.heard)
    assert plain.text == coloured.text


def test_a_pipe_gets_no_escape_codes(seen, driver, capfd):
    """Its progress goes into a real one, what the other commands say into a file."""
    inside = DriverInside(driver.folder, SPEED, captured=capfd)
    runs = {(*RUN, "--trials", "2"): driver, ("status",): inside, ("show", "0"): inside, ("spaces", "tiny-cpu"): inside}
    for words, shell in runs.items():
        done = shell.run(*words)
        assert done.exit_code == 0
        assert "\x1b" not in done.said


def test_a_dry_run_shows_the_plan_and_starts_nothing(inside):
    done = inside.run(*RUN, "--dry-run")
    assert done.exit_code == 0, done.said
    for words in ("nothing is started", "max-num-seqs", "trial #0 (baseline)", "--max-num-seqs 8", "for 5 trials"):
        assert words in done.out, words
    assert not (inside.folder / "autotune").exists()
    assert not inside.left()
