"""Whether this host can tell the energy that an objective asks for."""

from __future__ import annotations

from optimizer.config import StudyConfig
from optimizer.core.errors import HostError
from optimizer.metrics.cpu_energy import PackageEnergy, read_package_energy
from optimizer.objectives.objective import TOKENS_PER_JOULE


def check_energy(config: StudyConfig) -> None:
    """Refuses a study of tokens per joule whose engine runs on a CPU without an energy counter, before it starts.

    Cards tell theirs once they are leased; one that does not ends the study at the baseline. An external evaluator may
    measure it with an instrument of its own.

    Raises:
        HostError: The energy of the CPU cannot be read.
    """
    if config.evaluator is not None or config.objective.metric != TOKENS_PER_JOULE or config.engine.device != "cpu":
        return
    found = read_package_energy()
    if not isinstance(found, PackageEnergy):
        raise HostError(
            f"the objective {config.objective.name} cannot be measured on this host: {found}",
            hint="run it as root on a bare machine, or choose another --objective such as throughput",
        )
