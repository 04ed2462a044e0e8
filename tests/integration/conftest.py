"""A bench for each test; whatever the test did, its fake cluster is taken down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration_bench import RunBench

STEPS = 250


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[RunBench]:
    made = RunBench(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """The digest at the end of an uninterrupted run of ``train.py`` by so many ranks; run once for each number."""
    known: dict[int, str] = {}

    def digest(num_ranks: int) -> str:
        if num_ranks not in known:
            made = RunBench(tmp_path_factory.mktemp("reference"))
            try:
                args = ["--steps", str(STEPS), "--step-s", "0"]
                made.submit(made.config("whole", args, workers_per_node=num_ranks))
                made.wait("whole")
                known[num_ranks] = made.digest("whole")
            finally:
                made.close()
        return known[num_ranks]

    return digest
