"""Whether an engine starts and survives its load, learnt from graded crashes and from what served.

A Gaussian process over a signed score: -1 for an engine that served, above 0 for one that crashed, the more the
farther it was from starting. Where nothing is known an engine is expected to serve. What the memory account foretells
of a launch stands beside the parameters as two more features, so that one crash for want of memory warns of all
settings that leave as little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import log_ndtr

from optimizer.core.measurement import FloatArray
from optimizer.engine.memory import MemoryPrediction
from optimizer.search_spaces import GIB
from optimizer.tuning.gp.encoding import Encoding, Points
from optimizer.tuning.gp.fit import Beliefs, fitted
from optimizer.tuning.gp.regression import Data, GaussianProcess
from optimizer.tuning.strategy import Params, Seen

MemoryOf = Callable[[Params], MemoryPrediction | None]

_SERVED = -1.0
_LEAST_CRASH = 0.8
_MOST_CRASH = 1.5
_SCORE_SD = 0.2
_BELIEFS = Beliefs(log_length=-1.2, spread=1.0, noise_sd=0.3, log_noise_sd=0.5, additive=0.9)
_LINK_SD = 0.5
"""How blurred the border between serving and crashing is taken to be: without it few points make for rash certainty."""
_SERVED_BEFORE = 2.0
"""Trials that served, so to say, before the first: what the expectation starts from."""
_SHARE_LOG_LENGTH = -1.7
"""Of the memory that an engine takes as its own: a few percent of a device lie between serving and crashing, so a crash
or a start tells of about a sixth of the range on either side."""
_NO_MATTER_LOG_LENGTH = 1.5
"""Of what takes no memory: few crashes must not be laid to a block size that they happened to share."""
_SHARE = "gpu-memory-utilization"
_TAKES_MEMORY = (
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "kv-cache-dtype",
    "max-cudagraph-capture-size",
    "tensor-parallel-size",
    "cpu-offload-gb",
)
_TAKES_MEMORY_BELOW = ("speculative", "compilation", "cudagraph")
"""Flags that begin so take memory as well: draft models and captured graphs."""
_MOST_GIB = 8.0
_MOST_LOG_POOL = 2.0
_MEMORY_COLUMNS = 2


@dataclass(frozen=True, slots=True)
class Survival:
    """The chance that an engine serves.

    Attributes:
        process: Of the score; None while no engine has crashed.
        encoding: From rows to features.
        memory_of: What the memory account foretells of a setting; None where there is no account.
    """

    process: GaussianProcess | None
    encoding: Encoding
    memory_of: MemoryOf | None

    @property
    def is_slow(self) -> bool:
        """Whether every setting has to be resolved for it."""
        return self.process is not None and self.memory_of is not None

    def log_chance(self, points: Points) -> FloatArray:
        """log P(the engine serves), shape (points,)."""
        if self.process is None:
            return np.zeros(len(points))
        features = _features(points, self.encoding, self.memory_of)
        mean, sd = self.process.predict(features, np.zeros(len(points)))
        chance: FloatArray = log_ndtr(-mean / np.sqrt(sd**2 + self.process.noise + _LINK_SD**2))
        return chance


def learnt_survival(
    history: Sequence[Seen], points: Points, encoding: Encoding, memory_of: MemoryOf | None
) -> Survival:
    """From all trials that tell: those that crashed or were rejected, and those that served.

    Args:
        history: Ended trials.
        points: Their settings.
        encoding: From rows to features.
        memory_of: What the memory account foretells of a setting.
    """
    if not any(trial.crash is not None for trial in history):
        return Survival(None, encoding, memory_of)
    features = _features(points, encoding, memory_of)
    scores = np.array([_SERVED if trial.crash is None else _graded(trial.crash) for trial in history])
    data = Data(features, scores, np.full(len(scores), _SCORE_SD), np.zeros(len(scores)))
    level = (float(np.sum(scores)) + _SERVED_BEFORE * _SERVED) / (len(scores) + _SERVED_BEFORE)
    beliefs = replace(_BELIEFS, level=level, own_log_lengths=_log_lengths(encoding, memory_of))
    return Survival(fitted(data, _groups(encoding, memory_of), beliefs), encoding, memory_of)


def _graded(crash: float) -> float:
    return min(max(_LEAST_CRASH + crash, _LEAST_CRASH), _MOST_CRASH)


def _groups(encoding: Encoding, memory_of: MemoryOf | None) -> tuple[slice, ...]:
    if memory_of is None:
        return encoding.groups
    start = encoding.groups[-1].stop
    return (*encoding.groups, *(slice(start + at, start + at + 1) for at in range(_MEMORY_COLUMNS)))


def _log_lengths(encoding: Encoding, memory_of: MemoryOf | None) -> tuple[float | None, ...]:
    """How far a crash is thought to tell along each parameter, by what its flags do to memory."""
    lengths: list[float | None] = []
    for axis in encoding.axes:
        flags = axis.parameter.flag_names(axis.name)
        if _SHARE in flags:
            lengths.append(_SHARE_LOG_LENGTH)
        elif any(flag in _TAKES_MEMORY or flag.startswith(_TAKES_MEMORY_BELOW) for flag in flags):
            lengths.append(None)
        else:
            lengths.append(_NO_MATTER_LOG_LENGTH)
    return (*lengths, *([] if memory_of is None else [None] * _MEMORY_COLUMNS))


def _features(points: Points, encoding: Encoding, memory_of: MemoryOf | None) -> FloatArray:
    if memory_of is None:
        return points.features
    foretold = [_memory(memory_of(encoding.params(row))) for row in points.rows]
    return np.hstack([points.features, np.array(foretold).reshape(-1, _MEMORY_COLUMNS)])


def _memory(prediction: MemoryPrediction | None) -> tuple[float, float]:
    """How many longest requests the pool holds (log), and the GiB it has beyond one; both from -1 to 1."""
    if prediction is None:
        return 0.0, 0.0
    pool, request = prediction.pool_bytes.mid, max(prediction.request_bytes, 1.0)
    log_pool = math.log(max(pool, 1.0) / request)
    gib = (pool - request) / GIB
    return (
        min(max(log_pool / _MOST_LOG_POOL, -1.0), 1.0),
        min(max(gib / _MOST_GIB, -1.0), 1.0),
    )
