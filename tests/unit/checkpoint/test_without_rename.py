"""Checkpoints on storage without an atomic rename: the manifest, put last, is what publishes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from leaving_out import leave_out

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.store import collect, in_place
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import newest

SMALL = store.Digesting(chunk_bytes=16)


def ident(step: int, *, attempt: int = 0) -> CheckpointId:
    return CheckpointId(attempt=attempt, restart=0, step=step)


def save(directory: Path, step: int, *, attempt: int = 0) -> Path:
    content = {"a.bin": bytes([step % 256]) * 100}
    done = store.write_buffers(directory, ident(step, attempt=attempt), content, digesting=SMALL, without_rename=True)
    return directory / str(done.id)


def begin(directory: Path, step: int, *, attempt: int = 0) -> Path:
    """What a writer that was killed in the middle leaves."""
    path = directory / str(ident(step, attempt=attempt))
    in_place.begin(path)
    (path / "a.bin").write_bytes(b"half")
    return path


def test_it_is_written_under_its_own_name_and_read_like_any_other(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert store.published(tmp_path) == [ident(10)]
    assert store.read_verified(path, "a.bin") == bytes([10]) * 100
    assert [each.is_intact for each in store.verify([path])] == [True]


def test_what_has_no_manifest_is_not_there_and_nobody_takes_it_for_damaged(tmp_path: Path) -> None:
    save(tmp_path, 10)
    unfinished = begin(tmp_path, 20)
    assert store.choose(tmp_path).manifest.id == ident(10)  # type: ignore[union-attr]
    (unfinished / "MANIFEST.json").touch()
    choice = store.choose(tmp_path)
    assert choice.manifest is not None and choice.manifest.id == ident(10)
    assert [str(verdict.standing) for verdict in choice.verdicts] == ["chosen"]
    found = {each.name: each for each in store.survey(tmp_path, store.Lineage())}
    assert found[unfinished.name].standing is store.Standing.UNFINISHED
    survey = list(found.values())
    fates = {
        is_idle: {
            each.found.name: each.goes
            for each in collect.plan(survey, newest(2), verified=[ident(10)], resumed_from=None, is_idle=is_idle)
        }
        for is_idle in (True, False)
    }
    assert fates[True][unfinished.name] and not fates[False][unfinished.name]


def test_both_kinds_lie_side_by_side(tmp_path: Path) -> None:
    store.write_buffers(tmp_path, ident(10), {"a.bin": b"x"})
    save(tmp_path, 20)
    assert store.published(tmp_path) == [ident(20), ident(10)]
    assert set(store.prune(tmp_path, newest(1), verified={ident(20)}, resumed_from=None)) == {ident(10)}
    assert store.published(tmp_path) == [ident(20)]


def test_a_damaged_one_is_revoked_where_it_lies_and_an_older_one_used(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    data = bytearray((path / "a.bin").read_bytes())
    data[50] ^= 1
    (path / "a.bin").write_bytes(data)
    choice = store.choose(tmp_path)
    assert choice.manifest is not None and choice.manifest.id == ident(10)
    damaged = choice.verdicts[0]
    assert (damaged.name, damaged.standing) == (path.name, store.Standing.DAMAGED)
    assert damaged.quarantined_as == f"{path.name}/.revoked"
    # Kept for a diagnosis, and never looked at again.
    assert store.published(tmp_path) == [ident(10)]
    standing = {each.name: each.standing for each in store.survey(tmp_path, store.Lineage())}
    assert standing[path.name] is store.Standing.QUARANTINED


def test_a_writer_of_an_older_attempt_that_goes_on_an_hour_later_publishes_nothing(tmp_path: Path) -> None:
    save(tmp_path, 10)

    def write(path: Path) -> list[store.FileEntry]:
        with SMALL.writer(path, "a.bin") as file:
            file.write(b"late")
            entry = file.finish()
        # Meanwhile the next attempt was claimed.
        assert store.fence(tmp_path, attempt=1) == [path.name]
        return [entry]

    alone = store.Round(store.LocalBoard(), "late", rank=0, world_size=1, deadline_s=0.0)
    with pytest.raises(store.FencedError, match="a newer attempt"):
        store.publish(tmp_path, ident(20), alone, write=write, facts=store.Facts(), without_rename=True)
    assert store.published(tmp_path) == [ident(10)]


def test_a_late_manifest_changes_nothing_and_the_next_start_removes_what_has_none(tmp_path: Path) -> None:
    late, dead = begin(tmp_path, 20), begin(tmp_path, 30)
    own = begin(tmp_path, 5, attempt=1)
    assert set(store.fence(tmp_path, attempt=1)) == {late.name, dead.name}
    shutil.copy(save(tmp_path, 40, attempt=1) / "MANIFEST.json", late)
    assert store.published(tmp_path) == [ident(40, attempt=1)]
    assert store.sweep(tmp_path) == [dead.name]
    assert late.is_dir() and own.is_dir()


def test_a_save_that_fails_gives_its_space_back_and_its_name(tmp_path: Path) -> None:
    def fail(path: Path) -> list[store.FileEntry]:
        (path / "a.bin").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    alone = store.Round(store.LocalBoard(), "full", rank=0, world_size=1, deadline_s=0.0)
    with pytest.raises(CheckpointError, match="No space left"):
        store.publish(tmp_path, ident(20), alone, write=fail, facts=store.Facts(), without_rename=True)
    assert list(tmp_path.iterdir()) == []
    save(tmp_path, 20)
    with pytest.raises(CheckpointError, match="exists already"):
        save(tmp_path, 20)


STORY = """
import sys
from pathlib import Path
from resilient_launch.checkpoint import store
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import newest
place = Path(sys.argv[1])
ident = lambda step, attempt=0: CheckpointId(attempt=attempt, restart=0, step=step)
save = lambda each: store.write_buffers(place, each, {"a.bin": bytes(5000)}, without_rename=True)
try:
    (place / "one").mkdir()
    (place / "one").rename(place / "other")
    sys.exit("this storage does rename")
except OSError:
    (place / "one").rmdir()
for step in (10, 20, 30):
    save(ident(step))
store.fence(place, 1)
store.sweep(place)
(place / str(ident(30)) / "a.bin").write_bytes(bytes(4999) + b"x")
assert store.choose(place).manifest.id == ident(20)
save(ident(25, 1))
assert store.prune(place, newest(1), verified={ident(25, 1)}, resumed_from=None) == [ident(20), ident(10)]
assert store.choose(place).manifest.id == ident(25, 1)
"""


def test_nothing_of_it_needs_a_rename(tmp_path: Path) -> None:
    leave_out("storage without rename", [] if shutil.which("strace") else ["strace"])
    inject = "--inject=rename,renameat,renameat2:error=ENOSYS"
    command = ["strace", "-f", "-qq", "-o", "/dev/null", inject, sys.executable, "-c", STORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
