"""A rank's share of the global batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilient_launch.config.schema import CheckpointConfig
from resilient_launch.core.errors import UsageError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.page import Page
from resilient_launch.job.run import Run
from resilient_launch.job.workplace import Workplace


def of_ranks(directory: Path, num_ranks: int, total: int | None, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("WORLD_SIZE", str(num_ranks))
    RunPaths(directory).events.mkdir(parents=True)
    workplace = Workplace(directory, Page.create(directory / "page"), CheckpointConfig())
    workplace.global_batch = total
    return Run(workplace)


@pytest.mark.parametrize(("num_ranks", "share"), [(1, 12), (3, 4), (4, 3)])
def test_fewer_ranks_have_more_each(
    num_ranks: int, share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of_ranks(tmp_path, num_ranks, 12, monkeypatch).batch_size == share


@pytest.mark.parametrize(
    ("num_ranks", "total", "why"),
    [(5, 12, "5 ranks cannot share it equally"), (2, None, "the configuration sets none")],
)
def test_what_cannot_be_shared_is_refused(
    num_ranks: int, total: int | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=why):
        _ = of_ranks(tmp_path, num_ranks, total, monkeypatch).batch_size
