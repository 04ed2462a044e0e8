"""The command line's surface is frozen: a changed option or sentence shows in a diff of tests/golden/cli."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from resilient_launch.cli.main import app

COMMANDS = ("submit", "status", "logs", "wait", "cancel", "checkpoint", "yield", "stop", "requeue")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command: str, golden: Callable[[str, str], str]) -> None:
    arguments = [command, "--help"] if command else ["--help"]
    result = CliRunner().invoke(app, arguments, prog_name="rlaunch", env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert result.exit_code == 0
    assert result.output == golden(f"cli/help_{command or 'rlaunch'}.txt", result.output)


def test_every_command_has_a_golden_help() -> None:
    assert {command.name for command in app.registered_commands} == set(COMMANDS)


def test_starting_up_imports_neither_torch_nor_submitit() -> None:
    code = (
        "import sys, resilient_launch.cli.main\n"
        "print(sorted({'torch', 'submitit', 'numpy', 'yaml', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
