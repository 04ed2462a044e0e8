"""A fake cluster per test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_lab import Lab, spec


@pytest.fixture
def lab_of(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """Makes a lab of any shape; everything is taken down after the test."""
    labs: list[Lab] = []

    def make(**changes: Any) -> Lab:
        directory = tmp_path / f"lab{len(labs)}"
        directory.mkdir()
        labs.append(Lab(directory, spec(**changes)))
        return labs[-1]

    yield make
    for lab in labs:
        lab.cluster.down(remove=True)


@pytest.fixture(scope="module")
def idle_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One cluster for every test that starts nothing on it."""
    made = Lab(tmp_path_factory.mktemp("idle"), spec())
    yield made
    made.cluster.down(remove=True)


@pytest.fixture
def lab(lab_of: Callable[..., Lab]) -> Lab:
    return lab_of()
