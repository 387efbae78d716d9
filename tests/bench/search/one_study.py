"""One study by the names of what it runs on: what a worker process is given."""

from __future__ import annotations

from tests.bench.search.catalogue import set_of
from tests.bench.search.optimum import optimum_of
from tests.bench.search.rows import Row
from tests.bench.search.study import run_study


def one_study(name: str, seed: int, strategy: str, trials: int, claim: str) -> Row:
    """One row; the optimum of the instance is found first where the cache does not have it."""
    found = set_of(name)
    situation = found.situations[name](seed)
    optimum = optimum_of(situation, found.digest)
    return run_study(situation, strategy, trials=trials, optimum=optimum.value, digest=found.digest, claim=claim)
