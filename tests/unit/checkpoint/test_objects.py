"""Checkpoints in object stores: the manifest commits, content verifies, and what is half there is not there."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.store.objects import ObjectStore
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

FILES = {"a.bin": bytes(range(256)) * 10, "b.bin": b"", "c.bin": b"c" * 70}


def ident(step: int, attempt: int = 0) -> CheckpointId:
    return CheckpointId(attempt=attempt, restart=0, step=step)


def save(directory: Path, step: int, *, run_id: str = "r", attempt: int = 0) -> Path:
    directory.mkdir(exist_ok=True)
    facts = store.Facts(run_id=run_id)
    files = {**FILES, "c.bin": bytes([step]) * 70}
    store.write_buffers(directory, ident(step, attempt), files, facts, digesting=store.Digesting(chunk_bytes=64))
    return directory / str(ident(step, attempt))


@pytest.fixture(params=["file", "memory"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    """A file system and the root in it, empty."""
    root = str(tmp_path / "remote") if request.param == "file" else f"/{tmp_path.name}/remote"
    yield fsspec.filesystem(request.param), root
    MemoryFileSystem.store.clear()


def test_what_is_pushed_is_pulled_as_it_was(tmp_path: Path, remote: tuple[Any, str]) -> None:
    objects = ObjectStore(*remote)
    assert objects.published() == []
    for step in (10, 20):
        assert objects.push(save(tmp_path / "here", step))
    assert not objects.push(tmp_path / "here" / str(ident(20)))
    assert objects.published() == [ident(20), ident(10)]
    pulled = objects.pull(tmp_path / "there", run_id="r")
    assert pulled.path == tmp_path / "there" / str(ident(20)) and pulled.damaged == ()
    original = tmp_path / "here" / str(ident(20))
    assert {path.name: path.read_bytes() for path in pulled.path.iterdir()} == {
        path.name: path.read_bytes() for path in original.iterdir()
    }
    chosen = store.choose(tmp_path / "there", store.Lineage(run_id="r")).manifest
    assert chosen is not None and chosen.id == ident(20)
    # A name is not used twice, here no more than there.
    with pytest.raises(CheckpointError, match="exists already"):
        objects.pull(tmp_path / "there", ident(20))
    with pytest.raises(store.ForeignError):
        objects.pull(tmp_path / "elsewhere", run_id="other")


class FullStore(MemoryFileSystem):
    """Refuses to open anything for writing after some files."""

    cachable = False

    def __init__(self, num_files: int) -> None:
        super().__init__()
        self.num_files = num_files

    def _take(self) -> None:
        self.num_files -= 1
        if self.num_files < 0:
            raise OSError("quota exceeded")

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if "w" in mode:
            self._take()
        return super().open(path, mode, **options)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._take()
        MemoryFileSystem().pipe_file(path, value, **options)


@pytest.mark.parametrize("num_files", range(4))
def test_a_push_that_breaks_anywhere_commits_nothing_and_can_be_repeated(tmp_path: Path, num_files: int) -> None:
    path = save(tmp_path / "here", 10)
    try:
        with pytest.raises(CheckpointError, match="quota exceeded"):
            ObjectStore(FullStore(num_files), "/run").push(path)
        objects = ObjectStore(MemoryFileSystem(), "/run")
        assert objects.published() == []
        with pytest.raises(CheckpointError, match="there is none"):
            objects.pull(tmp_path / "there")
        assert objects.push(path)
        assert objects.pull(tmp_path / "there").manifest.id == ident(10)
    finally:
        MemoryFileSystem.store.clear()


@pytest.mark.parametrize("num_bytes", [0, 100])
def test_a_commit_that_was_cut_off_is_none_and_is_made_again(tmp_path: Path, num_bytes: int) -> None:
    objects = ObjectStore(LocalFileSystem(), str(tmp_path / "remote"))
    for step in (10, 20):
        objects.push(save(tmp_path / "here", step))
    manifest = tmp_path / "remote" / str(ident(20)) / "MANIFEST.json"
    manifest.write_bytes(manifest.read_bytes()[:num_bytes])
    assert objects.pull(tmp_path / "there").manifest.id == ident(10)
    assert objects.push(tmp_path / "here" / str(ident(20)))
    assert objects.pull(tmp_path / "there").manifest.id == ident(20)


class SilentStore(LocalFileSystem):
    """Does not answer when it is asked about one of its files."""

    cachable = False
    silent = ""

    def info(self, path: Any, **options: Any) -> Any:
        if self.silent and str(path).endswith(self.silent):
            raise OSError(errno.EIO, "I/O error")
        return super().info(path, **options)


def test_a_store_that_does_not_answer_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    fs = SilentStore()
    objects = ObjectStore(fs, str(tmp_path / "remote"))
    for step in (10, 20):
        objects.push(save(tmp_path / "here", step))
    fs.silent = f"{ident(20)}/MANIFEST.json"
    with pytest.raises(CheckpointError, match="Input/output error"):
        objects.pull(tmp_path / "there")
    fs.silent = "remote"
    with pytest.raises(CheckpointError, match="Input/output error"):
        objects.published()


def test_a_directory_here_that_can_not_be_made_is_one_clear_error(tmp_path: Path) -> None:
    objects = ObjectStore(LocalFileSystem(), str(tmp_path / "remote"))
    objects.push(save(tmp_path / "here", 10))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="can't be created") as caught:
        objects.pull(tmp_path / "file" / "there")
    assert str(tmp_path / "file") in caught.value.where


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_damage_there_sends_a_pull_to_the_older_one(tmp_path: Path, damage: str) -> None:
    objects = ObjectStore(LocalFileSystem(), str(tmp_path / "remote"))
    for step in (10, 20):
        objects.push(save(tmp_path / "here", step))
    victim = tmp_path / "remote" / str(ident(20)) / ("MANIFEST.json" if damage == "manifest" else "a.bin")
    data = bytearray(victim.read_bytes())
    data[100] ^= 1
    if damage == "remove":
        victim.unlink()
    else:
        victim.write_bytes(data[:50] if damage == "cut" else data)
    pulled = objects.pull(tmp_path / "there")
    assert pulled.manifest.id == ident(10) and [name for name, _ in pulled.damaged] == [str(ident(20))]
    assert not list((tmp_path / "there").glob(".*")) and len(list((tmp_path / "there").iterdir())) == 1
    with pytest.raises(CheckpointError, match="is damaged"):
        objects.pull(tmp_path / "there", ident(20))


def test_damage_here_is_not_pushed(tmp_path: Path, remote: tuple[Any, str]) -> None:
    path = save(tmp_path / "here", 10)
    data = bytearray((path / "a.bin").read_bytes())
    data[1] ^= 1
    (path / "a.bin").write_bytes(data)
    objects = ObjectStore(*remote)
    with pytest.raises(store.DamagedError):
        objects.push(path)
    assert objects.published() == []


def test_another_one_of_the_same_name_is_left_alone(tmp_path: Path, remote: tuple[Any, str]) -> None:
    objects = ObjectStore(*remote)
    objects.push(save(tmp_path / "here", 10))
    other = save(tmp_path / "other", 10)
    with pytest.raises(CheckpointError, match="never used twice"):
        objects.push(other)
    assert (
        objects.pull(tmp_path / "there").manifest.uuid
        == store.open_checkpoint(tmp_path / "here" / str(ident(10))).manifest.uuid
    )


def test_a_url_that_nobody_knows_is_one_clear_error() -> None:
    with pytest.raises(CheckpointError, match="object store refuses"):
        ObjectStore.at("nosuch://bucket/run")
