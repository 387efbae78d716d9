"""Energy of the host's CPU packages, as the kernel counts it (RAPL, through powercap)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class PackageEnergy:
    """Counters of all packages in microjoules, and where each starts again from zero."""

    counters_uj: tuple[int, ...]
    ranges_uj: tuple[int, ...]

    def since(self, before: PackageEnergy) -> float:
        """Joules drawn since an earlier reading of the same host; a counter may have started again once."""
        pairs = zip(before.counters_uj, self.counters_uj, self.ranges_uj, strict=True)
        return sum(now - was if now >= was else now - was + full for was, now, full in pairs) / 1e6


def read_package_energy(root: Path = POWERCAP) -> PackageEnergy | str:
    """All packages, or why they cannot be read: most kernels let only root do so, most virtual machines have none."""
    packages = sorted(root.glob("intel-rapl:[0-9]*"))
    # `intel-rapl:0:1` is a part of package 0 (cores, memory), and counted in it.
    packages = [package for package in packages if package.name.count(":") == 1]
    if not packages:
        return "energy of the CPU: the kernel offers no counter (no intel-rapl under powercap)"
    try:
        counters = tuple(int((package / "energy_uj").read_text(encoding="ascii")) for package in packages)
        ranges = tuple(int((package / "max_energy_range_uj").read_text(encoding="ascii")) for package in packages)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return f"energy of the CPU: the kernel's counter cannot be read ({reason})"
    return PackageEnergy(counters, ranges)
