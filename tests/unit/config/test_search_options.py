"""`--sampler`, `--stop-below-gain` and the keys of a space that say the same."""

from __future__ import annotations

import pytest

from optimizer.config import build_study_config, load_space
from optimizer.config.search_options import parse_gain
from optimizer.config.space_file import SpaceFile
from optimizer.config.yaml_reader import read_yaml
from optimizer.core.errors import InputError
from optimizer.core.samplers import DEFAULT_SAMPLER


@pytest.fixture
def tiny(project_root):
    """Makes the space `tiny-cpu` with other keys."""
    folder = project_root / "search_spaces" / "builtin"
    data = read_yaml(folder / "tiny-cpu.yaml", origin="tiny-cpu.yaml")
    return lambda **keys: SpaceFile.from_data({**data, **keys}, origin="t.yaml", folder=folder)


def test_the_sampler_comes_from_the_option_then_the_space_then_the_default(tiny):
    assert build_study_config(load_space("tiny-cpu")).sampler == DEFAULT_SAMPLER
    assert build_study_config(tiny(sampler="random")).sampler == "random"
    assert build_study_config(tiny(sampler="random"), sampler="grid").sampler == "grid"


def test_a_study_may_go_on_with_another_sampler(tiny):
    one, other = (build_study_config(tiny(), sampler=name) for name in ("random", "tpe"))
    assert one.identity() == other.identity()
    assert (one.as_dict()["sampler"], other.as_dict()["sampler"]) == ("random", "tpe"), "and what it began with is kept"


def test_an_unknown_sampler_is_told_with_where_it_stands(tiny):
    with pytest.raises(InputError, match=r"--sampler: 'randon'.*random"):
        build_study_config(tiny(), sampler="randon")
    with pytest.raises(InputError, match=r"t.yaml.*sampler.*'randon'"):
        tiny(sampler="randon")


def test_the_gain_is_a_percentage(tiny):
    assert build_study_config(tiny()).least_gain is None
    assert build_study_config(tiny(stop_below_gain="1%")).least_gain == 0.01
    assert build_study_config(tiny(stop_below_gain="1%"), least_gain="0.5 %").least_gain == 0.005


@pytest.mark.parametrize("text", ["1", "0%", "100%", "-1%", "x", "", "1%%", "nan%"])
def test_what_is_no_percentage_is_refused(tiny, text):
    with pytest.raises(InputError, match="--stop-below-gain"):
        parse_gain(text, origin="--stop-below-gain")
    with pytest.raises(InputError, match="stop_below_gain"):
        tiny(stop_below_gain=text)
