"""The command line for every test here."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_bench import CommandLine


@pytest.fixture
def line(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)
