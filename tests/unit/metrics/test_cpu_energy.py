"""Energy of CPU packages from files as the kernel's powercap has them."""

from __future__ import annotations

from pathlib import Path

from optimizer.metrics.cpu_energy import PackageEnergy, read_package_energy


def package(root: Path, name: str, energy: str, full: int = 1_000_000) -> None:
    folder = root / name
    folder.mkdir()
    (folder / "energy_uj").write_text(energy)
    (folder / "max_energy_range_uj").write_text(f"{full}\n")


def read(root: Path) -> PackageEnergy:
    energy = read_package_energy(root)
    assert isinstance(energy, PackageEnergy)
    return energy


def test_packages_add_up_and_their_parts_do_not_count_twice(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", "100000\n")
    package(tmp_path, "intel-rapl:0:1", "90000\n")
    package(tmp_path, "intel-rapl:1", "50000\n")
    before = read(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("400000\n")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("150000\n")
    assert read(tmp_path).since(before) == 0.4


def test_a_counter_that_started_again_goes_on() -> None:
    assert PackageEnergy((100_000,), (1_000_000,)).since(PackageEnergy((900_000,), (1_000_000,))) == 0.2


def test_without_a_counter_the_reason_is_told(tmp_path: Path) -> None:
    assert "no counter" in str(read_package_energy(tmp_path / "absent"))
    package(tmp_path, "intel-rapl:0", "garbage")
    assert "cannot be read" in str(read_package_energy(tmp_path))
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert "No such file" in str(read_package_energy(tmp_path))
