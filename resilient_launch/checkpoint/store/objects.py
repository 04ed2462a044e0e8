"""Checkpoints in an object store, or anywhere without an atomic rename: the manifest, put last, is what commits.

``<root>/<checkpoint>/<file>`` for every file, then ``<root>/<checkpoint>/MANIFEST.json``. What has no manifest is not
there; what has one verifies, or an older one is used. Names are never used for other content. Through fsspec.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store.choose import open_checkpoint
from resilient_launch.checkpoint.store.commit import commit_directory
from resilient_launch.checkpoint.store.errors import DamagedError, ForeignError, write_error
from resilient_launch.checkpoint.store.files import FileWriter
from resilient_launch.checkpoint.store.litter import discard, temporary_name
from resilient_launch.checkpoint.store.manifest import MANIFEST_NAME, FileEntry, Manifest, parse_manifest
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """A checkpoint that was brought here; ``damaged`` are newer ones that did not verify, each with the reason."""

    manifest: Manifest
    path: Path
    damaged: tuple[tuple[str, str], ...]


class ObjectStore:
    """Checkpoints below ``root`` of an fsspec file system."""

    def __init__(self, fs: Any, root: str) -> None:
        self._fs, self._root = fs, root.rstrip("/")

    @classmethod
    def at(cls, url: str) -> ObjectStore:
        """The store at a URL such as ``s3://bucket/run``. Raises CheckpointError for one that fsspec can't reach."""
        import fsspec

        with _telling(url):
            fs, root = fsspec.core.url_to_fs(url)
        return cls(fs, root)

    def published(self) -> list[CheckpointId]:
        """What is committed, newest of the lineage first."""
        with _telling(self._root):
            self._fs.invalidate_cache()
            if not self._is_there(self._root):
                return []
            names = [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]
            found = [ident for name in names if (ident := CheckpointId.parse(name)) is not None]
            return sorted((ident for ident in found if self._is_there(self._manifest(str(ident)))), reverse=True)

    def push(self, checkpoint: Path) -> bool:
        """Copy one published checkpoint, verified as it is read; False where it is there already.

        Raises CheckpointError, with nothing committed, where it is damaged here, where the store refuses, and where
        something else has its name there.
        """
        with open_checkpoint(checkpoint) as opened:
            manifest = opened.manifest
            if (there := self._committed(manifest.name)) is not None:
                if there.uuid != manifest.uuid:
                    raise CheckpointError(
                        f"another checkpoint is called {manifest.name}",
                        where=self._root,
                        why="a checkpoint's name is never used twice",
                        hint="another URL: each run needs one of its own",
                    )
                return False
            directory = f"{self._root}/{manifest.name}"
            with _telling(directory):
                self._fs.makedirs(directory, exist_ok=True)
            for entry in manifest.files:
                path = f"{directory}/{entry.name}"
                with _telling(path):
                    with self._fs.open(path, "wb") as target:
                        for start in range(0, entry.size, entry.chunk_bytes):
                            count = min(entry.chunk_bytes, entry.size - start)
                            target.write(opened.reader(entry.name).read(start, count))
                    self._check_size(path, entry.size)
                    self._sync(path)
            self._commit(manifest, directory)
        return True

    def _commit(self, manifest: Manifest, directory: str) -> None:
        path = self._manifest(manifest.name)
        try:
            with _telling(path):
                self._sync(directory, self._root)
                self._fs.pipe_file(path, manifest.render())
                self._sync(path, directory)
        except BaseException:
            # Its caller is told that there is nothing.
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise

    def pull(self, directory: Path, which: CheckpointId | None = None, *, run_id: str = "") -> Pulled:
        """Bring ``which``, or the newest that verifies, into ``directory`` and publish it there as it was.

        Raises CheckpointError where none verifies or the name is taken here, ForeignError for another run's.
        """
        damaged: list[tuple[str, str]] = []
        for ident in self.published() if which is None else [which]:
            try:
                manifest = self._read_manifest(str(ident))
                if run_id and manifest.facts.run_id and manifest.facts.run_id != run_id:
                    raise ForeignError(f"checkpoint of another run, {manifest.facts.run_id}", where=self._root)
                return Pulled(manifest=manifest, path=self._fetch(manifest, directory), damaged=tuple(damaged))
            except DamagedError as error:
                damaged.append((str(ident), f"{error.what}, {error.why}" if error.why else error.what))
        raise CheckpointError(
            "no checkpoint to pull",
            where=self._root,
            why="; ".join(f"{name} is damaged: {why}" for name, why in damaged) or "there is none",
        )

    def _fetch(self, manifest: Manifest, directory: Path) -> Path:
        temporary = directory / temporary_name(manifest.id)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        except OSError as error:
            raise write_error(error, "checkpoint directory can't be created", temporary) from error
        try:
            for entry in manifest.files:
                self._fetch_file(manifest, entry, temporary)
            commit_directory(temporary, directory / manifest.name, manifest)
        except BaseException:
            discard(temporary)
            raise
        return directory / manifest.name

    def _fetch_file(self, manifest: Manifest, entry: FileEntry, temporary: Path) -> None:
        path = f"{self._root}/{manifest.name}/{entry.name}"
        writer = FileWriter(temporary, entry.name, algorithm=manifest.algorithm, chunk_bytes=entry.chunk_bytes)
        with writer, _telling(path):
            with self._fs.open(path, "rb") as source:
                while data := source.read(entry.chunk_bytes):
                    writer.write(data)
            found = writer.finish()
        if found != entry:
            why = f"{found.size} bytes instead of {entry.size}" if found.size != entry.size else "its digest is wrong"
            raise DamagedError("object does not have the content that was written", why=why, where=path)

    def _committed(self, name: str) -> Manifest | None:
        """What has this name; None where nothing has, or where its commit was cut off."""
        try:
            return self._read_manifest(name)
        except DamagedError:
            return None

    def _read_manifest(self, name: str) -> Manifest:
        path = self._manifest(name)
        with _telling(path):
            data = self._fs.cat_file(path)
        manifest = parse_manifest(data, Path(path))
        if manifest.name != name:
            raise DamagedError("manifest is that of another checkpoint", why=manifest.name, where=path)
        return manifest

    def _check_size(self, path: str, size: int) -> None:
        found = self._fs.info(path)["size"]
        if found != size:
            raise CheckpointError("the store kept another size", why=f"{found} instead of {size} bytes", where=path)

    def _is_there(self, path: str) -> bool:
        # fsspec's own ``exists`` takes a store that does not answer for one that has nothing.
        try:
            self._fs.info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _sync(self, *paths: str) -> None:
        """On a mount, unlike in an object store, what was written may wait long in memory."""
        if getattr(self._fs, "local_file", False):
            for path in paths:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def _manifest(self, name: str) -> str:
        return f"{self._root}/{name}/{MANIFEST_NAME}"


@contextlib.contextmanager
def _telling(path: str) -> Iterator[None]:
    """A file system's trouble as an error of ours: damage where something is gone, else the store's refusal."""
    try:
        yield
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise DamagedError("object is missing", where=path) from error
    except OSError as error:
        if error.errno is None:
            raise _refusal(error, path) from error
        raise write_error(error, "the object store refuses", Path(path)) from error
    # Each of fsspec's file systems has exceptions of its own.
    except Exception as error:
        raise _refusal(error, path) from error


def _refusal(error: Exception, path: str) -> CheckpointError:
    return CheckpointError(
        "the object store refuses",
        where=path,
        why=f"{type(error).__name__}: {error}",
        hint="check the URL and the credentials; s3:// needs s3fs, gs:// needs gcsfs",
    )
