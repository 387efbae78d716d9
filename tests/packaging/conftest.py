"""A copy of the checkout, what it builds, and environments to install that into; nothing is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCES = (
    "LICENSE",
    "README.md",
    "MANIFEST.in",
    "objectives",
    "optimizer",
    "pyproject.toml",
    "requirements",
    "search_spaces",
    "storage",
)


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the dependencies of the running one, but not its vllm-autotune."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip_install(self, *args: str) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "install"]
        run([*pip, "--quiet", "--no-deps", "--no-index", "--no-build-isolation", *args])

    def run(self, *command: str, cwd: Path) -> str:
        """Stdout of a program of this environment; `python` is its Python."""
        return run([str(self.folder / "bin" / command[0]), *command[1:]], cwd=cwd)


def run(command: list[str], *, cwd: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="session")
def tree(project_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that builds read, links kept as links, as in a fresh clone."""
    copy = tmp_path_factory.mktemp("clone")
    for name in SOURCES:
        source = project_root / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(source, copy / name)
    return copy


@pytest.fixture(scope="session")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist, and the wheel that was built from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)])
    return out


@pytest.fixture(scope="session")
def from_wheel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Has the wheel installed; tests leave it as it is."""
    environment = _environment(tmp_path_factory.mktemp("from-wheel") / "environment")
    environment.pip_install(*map(str, built.glob("*.whl")))
    return environment


@pytest.fixture
def new_environment(tmp_path: Path) -> Callable[[str], Environment]:
    return lambda name: _environment(tmp_path / name)


def _environment(folder: Path) -> Environment:
    venv.create(folder, symlinks=True)
    # A plain path in a .pth file: the packages there are seen, but its own .pth files (editable installs) are not.
    site_packages = next(folder.glob("lib/python*/site-packages"))
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Environment(folder)
