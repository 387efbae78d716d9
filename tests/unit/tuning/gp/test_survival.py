"""The chance that an engine serves."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.engine.memory import MemoryPrediction, Range
from optimizer.search_spaces import GIB
from optimizer.tuning.gp.encoding import Encoding
from optimizer.tuning.gp.survival import learnt_survival


def chances(encoding, history, settings, memory_of=None):
    points = encoding.points(encoding.rows([trial.params for trial in history]))
    survival = learnt_survival(history, points, encoding, memory_of)
    return np.exp(survival.log_chance(encoding.points(encoding.rows(settings))))


def memory(pool_gib, request_gib=1.0):
    pool = Range(pool_gib * GIB, pool_gib * GIB, pool_gib * GIB)
    return MemoryPrediction(20 * GIB, 10 * GIB, pool, 1e5, pool, pool, 4096, request_gib * GIB, pool, 0)


def test_while_nothing_crashed_everything_serves(space, seen_as):
    encoding = Encoding(space)
    history = [seen_as(0, {}, (1.0, -1.0))]
    assert chances(encoding, history, [{}, {"block-size": 64}]) == pytest.approx(1.0)


def test_crashes_warn_of_their_surroundings_and_less_of_what_served(space, seen_as):
    encoding = Encoding(space)
    crashed = [{"max-model-len": 32768, "max-num-seqs": seqs} for seqs in (16, 64, 256)]
    served = [{"max-model-len": 4096, "max-num-seqs": seqs} for seqs in (16, 64, 256)]
    history = [seen_as(n, p, 0.5) for n, p in enumerate(crashed)]
    history += [seen_as(n, p, (1.0, -1.0)) for n, p in enumerate(served, 3)]
    long, short = chances(encoding, history, [{"max-model-len": n, "max-num-seqs": 32} for n in (32768, 4096)])
    assert long < 0.4 < 0.7 < short


def test_what_the_memory_account_foretells_warns_of_settings_that_look_different(space, seen_as):
    encoding = Encoding(space)
    pools = {16: -1.0, 32: 4.0, 64: -1.5, 128: 5.0, 256: -2.0, 512: 6.0}

    def memory_of(params):
        return memory(pools[params["max-num-seqs"]])

    history = [
        seen_as(n, {"max-num-seqs": seqs}, 0.7 if pools[seqs] < 0 else (1.0, -1.0))
        for n, seqs in enumerate((16, 32, 64, 128))
    ]
    small, large = chances(encoding, history, [{"max-num-seqs": n} for n in (256, 512)], memory_of)
    assert small < 0.45 < 0.65 < large


def test_an_account_that_cannot_tell_is_no_difficulty(space, seen_as):
    encoding = Encoding(space)
    history = [seen_as(0, {}, 0.5), seen_as(1, {"block-size": 32}, (1.0, -1.0))]
    found = chances(encoding, history, [{}, {"block-size": 64}], lambda _: None)
    assert np.all((found > 0.0) & (found < 1.0))


def test_crashes_at_one_share_of_memory_are_not_laid_to_a_block_size_that_they_happen_to_have(space, seen_as):
    encoding = Encoding(space)
    crashed = [{"gpu-memory-utilization": 0.95, "block-size": 64, "max-num-seqs": seqs} for seqs in (64, 256)]
    served = [{"gpu-memory-utilization": share, "block-size": 16} for share in (0.85, 0.86)]
    history = [seen_as(n, p, 0.5) for n, p in enumerate(crashed)]
    history += [seen_as(n, p, (1.0, -1.0)) for n, p in enumerate(served, 2)]
    same_share, same_block = chances(
        encoding,
        history,
        [{"gpu-memory-utilization": 0.94, "block-size": 16}, {"gpu-memory-utilization": 0.85, "block-size": 64}],
    )
    assert same_share < 0.6
    assert same_block > same_share + 0.2
