"""A small analytic model of the engine, corrected by what trials reveal: the mean that a search starts from."""

from optimizer.tuning.greybox.facts import ServingFacts, facts_of
from optimizer.tuning.greybox.launch_flags import LaunchFlags
from optimizer.tuning.greybox.model import FittedGreyBox, GreyBox

__all__ = ["FittedGreyBox", "GreyBox", "LaunchFlags", "ServingFacts", "facts_of"]
