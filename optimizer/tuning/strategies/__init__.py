"""The strategies that `--sampler` chooses from."""

from optimizer.tuning.strategies.catalogue import NAMES as NAMES
from optimizer.tuning.strategies.catalogue import strategy_named as strategy_named
