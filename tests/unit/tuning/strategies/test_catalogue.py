"""Strategies by name, and what one of them needs that is not part of this program."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from optimizer.core.errors import InputError
from optimizer.core.samplers import DEFAULT_SAMPLER, SAMPLERS
from optimizer.search_spaces import BoolParameter, SearchSpace
from optimizer.tuning.strategies import NAMES, strategy_named
from optimizer.tuning.strategies.catalogue import MODELLING

SPACE = SearchSpace({"x": BoolParameter(kind="bool")})


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_goes_by_its_name(name):
    assert strategy_named(name, SPACE).name == name


def test_an_unknown_name_is_told_with_the_nearest_and_all_others():
    with pytest.raises(InputError, match="did you mean random") as caught:
        strategy_named("randon", SPACE)
    assert caught.value.hint is not None
    assert all(name in caught.value.hint for name in SAMPLERS)


def test_the_default_is_a_strategy_that_models():
    assert DEFAULT_SAMPLER in MODELLING < set(NAMES)


def test_without_torch_optunas_gaussian_processes_are_refused(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(InputError, match="needs torch") as caught:
        strategy_named("optuna-gp", SPACE)
    assert caught.value.exit_code == 2
    assert caught.value.hint is not None
    strategy_named(DEFAULT_SAMPLER, SPACE)


def test_no_strategy_imports_torch_before_it_is_asked():
    code = (
        "import sys; from optimizer.tuning.strategies import NAMES, strategy_named; "
        "from optimizer.search_spaces import BoolParameter, SearchSpace; "
        "space = SearchSpace({'x': BoolParameter(kind='bool')}); "
        "[strategy_named(name, space) for name in NAMES]; print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
