"""The command line's surface is frozen: a changed option or sentence shows in a diff of tests/golden/cli.

RLAUNCH_UPDATE_GOLDEN=1 writes the texts anew.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from resilient_launch.cli.main import app

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "cli"


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words before --help of the program itself and of every command and group in it."""
    yield path
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(child, (*path, name))


PATHS = list(_commands(get_command(app)))


def _name(path: tuple[str, ...]) -> str:
    return f"help_{'_'.join(path) or 'rlaunch'}.txt"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: " ".join(path) or "rlaunch")
def test_help(path: tuple[str, ...], golden: Callable[[str, str], str]) -> None:
    environment = {"COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    result = CliRunner().invoke(app, [*path, "--help"], prog_name="rlaunch", env=environment)
    assert result.exit_code == 0
    assert result.output == golden(f"cli/{_name(path)}", result.output)


def test_every_golden_help_is_of_a_command() -> None:
    assert {file.name for file in GOLDEN.glob("help_*.txt")} == {_name(path) for path in PATHS}


def test_starting_up_imports_neither_torch_nor_submitit() -> None:
    code = (
        "import sys, resilient_launch.cli.main\n"
        "print(sorted({'torch', 'submitit', 'numpy', 'yaml', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
