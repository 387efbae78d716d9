"""What only a process of its own can show: exit codes, closed pipes, uncaught exceptions, start-up time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rich.text import Text

from optimizer.cli.console import progress_console
from optimizer.cli.faults import report_fault
from optimizer.cli.invocation import program, this_command


def start(*words: str, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "optimizer", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return subprocess.Popen(command, **pipes)


def test_exit_code_and_message_reach_the_shell(project_root, tmp_path):
    process = start("status", "--storage", str(tmp_path / "none.db"), cwd=project_root)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: ")
    assert "\x1b" not in err, "no colour codes in a pipe"


def test_a_reader_that_has_enough_is_no_fault(project_root, history):
    process = start("status", "--study", "tiny-cpu", "--json", "--storage", history, cwd=project_root)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert err == ""
    process.stderr.close()


def test_help_loads_neither_the_database_nor_the_search(project_root):
    script = (
        "import sys; sys.argv = ['vllm-autotune', '--help']\n"
        "from optimizer.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'optuna', 'sqlalchemy', 'numpy', 'scipy', 'pydantic', 'aiohttp'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=project_root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_unexpected_exception_is_our_fault_and_leaves_a_traceback_in_a_file(project_root, tmp_path):
    script = (
        "import optimizer.cli.main as cli\n"
        "from optimizer.cli.faults import install_fault_report\n"
        "install_fault_report()\n"
        "token = 'hf_pl4nted'\n"
        "raise KeyError(f'postgresql://ann:pl4nted@db and {token}')\n"
    )
    environment = {"TMPDIR": str(tmp_path), "HF_TOKEN": "hf_pl4nted", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=project_root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: this is a fault of vllm-autotune, not yours: KeyError")
    assert "Traceback" not in done.stderr
    (file,) = tmp_path.glob("vllm-autotune-fault-*.txt")
    assert str(file) in done.stderr
    written = file.read_text()
    assert "Traceback (most recent call last)" in written
    assert "pl4nted" not in done.stderr
    assert "hf_pl4nted" not in written


def test_a_traceback_that_cannot_be_written_is_said(monkeypatch, capsys):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    report_fault(ValueError, ValueError("boom"), None)
    err = capsys.readouterr().err
    assert "ValueError: boom" in err
    assert "No space left on device" in err


def test_a_study_goes_on_when_nobody_reads_its_progress(monkeypatch):
    class Closed:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr("sys.stderr", Closed())
    console = progress_console()
    console.print(Text("first"))
    console.print(Text("second"))
    assert console.quiet


@pytest.mark.parametrize(
    ("started_as", "name"),
    [("/venv/bin/vllm-autotune", "vllm-autotune"), ("/site/optimizer/__main__.py", "python -m optimizer")],
)
def test_commands_to_copy_start_as_this_one_did(monkeypatch, started_as, name):
    monkeypatch.setattr("sys.argv", [started_as, "run", "--baseline", "HF_TOKEN=pl4nted vllm serve m"])
    assert program() == name
    assert this_command() == f"{name} run --baseline 'HF_TOKEN=*** vllm serve m'"


def test_the_project_s_folder_is_not_needed_to_start(tmp_path, project_root):
    environment = {"PYTHONPATH": str(project_root), "PATH": ""}
    process = start("--version", cwd=tmp_path, env=environment)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.split()[0]) == (0, "vllm-autotune")
    assert list(Path(tmp_path).iterdir()) == []
