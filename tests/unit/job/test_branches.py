"""Going on from an older checkpoint: what is an ancestor stays usable, all else is left behind, and nothing is lost."""

from pathlib import Path

import pytest

from resilient_launch.checkpoint import store
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.branches import branched, left_behind, read_branches
from resilient_launch.job.prospect import prospect


def ident(step: int, attempt: int = 0) -> CheckpointId:
    return CheckpointId(attempt=attempt, restart=0, step=step)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "run")
    for directory in found.all():
        directory.mkdir(parents=True)
    for step in (100, 200, 300):
        save(found, step, parent=ident(step - 100) if step > 100 else None)
    return found


def save(paths: RunPaths, step: int, *, attempt: int = 0, parent: CheckpointId | None = None) -> None:
    facts = store.Facts(parent=str(parent) if parent else None)
    store.write_buffers(paths.checkpoints, ident(step, attempt), {"a.bin": bytes(10)}, facts)


def chosen(paths: RunPaths) -> int:
    manifest = store.choose(paths.checkpoints, prospect(paths).lineage).manifest
    assert manifest is not None
    return manifest.id.step


def go_on_from(paths: RunPaths, origin: CheckpointId) -> None:
    with branched(paths, origin, next_attempt=1):
        pass


def test_without_a_branch_the_newest_is_used(paths: RunPaths) -> None:
    assert (read_branches(paths), left_behind(paths), chosen(paths)) == ([], {}, 300)


def test_the_loader_goes_on_from_the_older_one(paths: RunPaths) -> None:
    go_on_from(paths, ident(100))
    assert chosen(paths) == 100
    assert left_behind(paths).keys() == {str(ident(200)), str(ident(300))}
    verdicts = store.choose(paths.checkpoints, prospect(paths).lineage).verdicts
    assert [str(verdict.standing) for verdict in verdicts] == ["passed over", "passed over", "chosen"]
    assert verdicts[0].why == f"left behind: training was told to go on from {ident(100)}"
    # What the new lineage saves is used before what was left behind.
    save(paths, 150, attempt=1, parent=ident(100))
    assert chosen(paths) == 150


def test_one_can_go_back_to_what_was_left_behind(paths: RunPaths) -> None:
    go_on_from(paths, ident(100))
    save(paths, 150, attempt=1, parent=ident(100))
    go_on_from(paths, ident(300))
    assert chosen(paths) == 300
    assert left_behind(paths).keys() == {str(ident(150, 1))}


def test_a_start_that_is_refused_changes_nothing(paths: RunPaths) -> None:
    go_on_from(paths, ident(200))
    with pytest.raises(RuntimeError), branched(paths, ident(100), next_attempt=1):
        assert chosen(paths) == 100
        raise RuntimeError("the queue is full")
    assert chosen(paths) == 200


def test_a_damaged_record_is_an_error_and_no_silent_choice(paths: RunPaths) -> None:
    paths.lineage.write_text("{")
    with pytest.raises(CheckpointError, match=r"branches can't be read"):
        left_behind(paths)
