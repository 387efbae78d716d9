"""What a further trial is worth: the expected improvement on the best setting known, if it keeps the limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, log_ndtr

from optimizer.core.measurement import FloatArray
from optimizer.tuning.gp.encoding import Points
from optimizer.tuning.gp.outlook import Outlook

CRASH_WEIGHT = 3.0
"""What the log of the chance to serve counts for: a crash costs a trial and teaches little."""
_LIKELY = 0.5
"""A setting that was tried counts as known to be feasible from this probability on."""
_TIE_BREAK = 0.05
"""While nothing is feasible: what a value of one standard deviation more is worth, in log probability."""


def log_expected_improvement(mean: FloatArray, sd: FloatArray, best: float) -> FloatArray:
    """log E[max(f - best, 0)] of f ~ N(mean, sd^2), stable however unlikely an improvement is.

    As in Ament et al. 2023, "Unexpected improvements to expected improvement". Shapes (m,).
    """
    z = (mean - best) / sd
    density = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi)
    low = np.minimum(z, -1.0)
    # phi(z) + z Phi(z) = phi(z) (1 + z Phi(z) / phi(z)); the bracket tends to 1 / z^2.
    ratio = math.sqrt(math.pi / 2.0) * erfcx(-low / math.sqrt(2.0))
    bracket = np.where(low > -1e3, np.log(np.maximum(1.0 + low * ratio, 1e-300)), -2.0 * np.log(-low))
    high = np.maximum(z, -1.0)
    plain = np.log(np.exp(-0.5 * high * high) / math.sqrt(2.0 * math.pi) + high * np.exp(log_ndtr(high)))
    found: FloatArray = np.log(sd) + np.where(z > -1.0, plain, density + bracket)
    return found


@dataclass(frozen=True, slots=True)
class Acquisition:
    """The log of what a trial is worth; where the chance that its engine serves is slow to tell, up to that.

    Attributes:
        outlook: What is expected of settings, pending ones taken as measured.
        best: Posterior mean of the best setting that was tried and probably keeps the limits; None without one.
    """

    outlook: Outlook
    best: float | None

    def __call__(self, points: Points) -> FloatArray:
        """Shape (points,)."""
        feasible = self.outlook.log_feasible(points)
        if not self.outlook.survival.is_slow:
            feasible = feasible + CRASH_WEIGHT * self.outlook.survival.log_chance(points)
        if self.outlook.value is None:
            return feasible
        mean, sd = self.outlook.value.predict(points)
        if self.best is not None:
            return log_expected_improvement(mean, sd, self.best) + feasible
        spread = math.sqrt(self.outlook.value.process.kernel.variance)
        return feasible + _TIE_BREAK * (mean - self.outlook.value.process.level) / spread


def incumbent(outlook: Outlook, served: Points) -> float | None:
    """Posterior mean of the best of these settings that probably keep all limits; None when none does.

    Args:
        outlook: What is expected.
        served: Settings that were measured.
    """
    if outlook.value is None or not len(served):
        return None
    mean, _ = outlook.value.predict(served)
    likely = outlook.log_feasible(served) >= math.log(_LIKELY)
    return float(np.max(mean[likely])) if np.any(likely) else None
