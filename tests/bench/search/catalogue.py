"""All situations by name, in sets that are kept apart: to tune the search on, to judge it by, and a measured grid."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.search import judging, replay, tuning
from tests.bench.search.situation import Situation

_SHARED = ("account.py", "drawing.py", "launch.py", "measuring.py", "spaces.py")


@dataclass(frozen=True, slots=True)
class SituationSet:
    """Situations that are used for one purpose.

    Attributes:
        situations: By name.
        seeds: Of the instances; no other set has one of them.
        sources: Files that hold the equations.
    """

    situations: Mapping[str, Callable[[int], Situation]]
    seeds: range
    sources: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Of the equations: a study on other ones is another study."""
        here = Path(__file__).parent
        return hashlib.sha256(b"".join((here / name).read_bytes() for name in self.sources)).hexdigest()[:10]


SETS: Mapping[str, SituationSet] = {
    "tuning": SituationSet(tuning.SITUATIONS, tuning.SEEDS, (*_SHARED, "chunk_engine.py", "tuning.py")),
    "grid": SituationSet(replay.SITUATIONS, replay.SEEDS, (*_SHARED, "replay.py")),
    "judging": SituationSet(judging.SITUATIONS, judging.SEEDS, (*_SHARED, "wave_engine.py", "judging.py")),
}


def set_of(name: str) -> SituationSet:
    """The set that a situation belongs to.

    Raises:
        KeyError: There is none of that name.
    """
    for found in SETS.values():
        if name in found.situations:
            return found
    raise KeyError(name)


def chosen(words: str) -> list[str]:
    """Names of situations, from names of sets and situations with commas between them."""
    names: list[str] = []
    for word in words.split(","):
        names += list(SETS[word].situations) if word in SETS else [word]
    for name in names:
        set_of(name)
    return names
