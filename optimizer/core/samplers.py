"""The names of the search strategies, for those who let a person choose one."""

from __future__ import annotations

from typing import Final

SAMPLERS: Final[dict[str, str]] = {
    "tpe": "Optuna's tree-structured Parzen estimator",
    "gp": "Gaussian processes over objective, limits and crashes",
    "optuna-gp": "Optuna's Gaussian processes; needs torch",
    "random": "settings at random",
    "grid": "max-num-seqs by max-num-batched-tokens, all else as the baseline",
    "one-at-a-time": "one parameter after another, each kept at its best value",
}
"""Name to what it is."""

DEFAULT_SAMPLER: Final = "gp"
