"""The bench of the end-to-end tests serves here too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from integration_bench import RunBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RunBench]:
    made = RunBench(tmp_path)
    yield made
    made.close()
