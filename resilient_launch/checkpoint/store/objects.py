"""Checkpoints in an object store, or anywhere without an atomic rename: the manifest, put last, is what commits.

``<root>/<checkpoint>/<file>`` for every file, then ``<root>/<checkpoint>/MANIFEST.json``. What has no manifest is not
there; what has one verifies, or an older one is used. Names are never used for other content. Through fsspec.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store.choose import open_checkpoint
from resilient_launch.checkpoint.store.commit import commit_directory
from resilient_launch.checkpoint.store.errors import DamagedError, ForeignError
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
            if not self._fs.exists(self._root):
                return []
            names = [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]
            found = [ident for name in names if (ident := CheckpointId.parse(name)) is not None]
            return sorted((ident for ident in found if self._fs.exists(self._manifest(str(ident)))), reverse=True)

    def push(self, checkpoint: Path) -> bool:
        """Copy one published checkpoint, verified as it is read; False where it is there already.

        Raises CheckpointError, with nothing committed, where it is damaged here, where the store refuses, and where
        something else has its name there.
        """
        with open_checkpoint(checkpoint) as opened:
            manifest = opened.manifest
            if manifest.id in self.published():
                there = self._read_manifest(manifest.name)
                if there.uuid != manifest.uuid:
                    raise CheckpointError(
                        f"another checkpoint is called {manifest.name}",
                        where=self._root,
                        why="a checkpoint's name is never used twice",
                        hint="another URL: each run needs one of its own",
                    )
                return False
            for entry in manifest.files:
                path = f"{self._root}/{manifest.name}/{entry.name}"
                with _telling(path):
                    self._fs.makedirs(f"{self._root}/{manifest.name}", exist_ok=True)
                    with self._fs.open(path, "wb") as target:
                        for start in range(0, entry.size, entry.chunk_bytes):
                            count = min(entry.chunk_bytes, entry.size - start)
                            target.write(opened.reader(entry.name).read(start, count))
                    self._check_size(path, entry.size)
            with _telling(self._manifest(manifest.name)):
                self._fs.pipe_file(self._manifest(manifest.name), manifest.render())
        return True

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
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / temporary_name(manifest.id)
        temporary.mkdir()
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
    # Each of fsspec's file systems has exceptions of its own.
    except Exception as error:
        raise CheckpointError(
            "the object store refuses",
            where=path,
            why=f"{type(error).__name__}: {error}",
            hint="check the URL and the credentials; s3:// needs s3fs, gs:// needs gcsfs",
        ) from error
