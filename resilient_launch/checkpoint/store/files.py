"""One file of a checkpoint: written once while it is hashed, read back with every chunk verified before it is used."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from resilient_launch.checkpoint.store.errors import DamagedError, read_error, write_error
from resilient_launch.checkpoint.store.hashing import DEFAULT_ALGORITHM, Buffer, combine, hash_hex, new_hash
from resilient_launch.checkpoint.store.manifest import FileEntry, check_file_name

DEFAULT_CHUNK_BYTES = 8 << 20
_GATHER_BYTES = 1 << 20
_BATCH_BYTES, _BATCH_VIEWS = 1 << 19, 1000


class FileWriter:
    """Creates ``directory/name``, appends to it, and ends with an fsync and the file's entry for the manifest.

    Errors are CheckpointError. After one the file is closed and never tried again: a second fsync of a file whose
    first one failed reports success for data that is lost.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        algorithm: str = DEFAULT_ALGORITHM,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        mode: int = 0o644,
    ) -> None:
        self.path = directory / check_file_name(name)
        self.position = 0
        self._algorithm, self._chunk_bytes = algorithm, chunk_bytes
        self._hash = new_hash(algorithm)
        self._chunks: list[str] = []
        self._gathered = bytearray()
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        except OSError as error:
            raise write_error(error, "checkpoint file can't be created", self.path) from error

    def write(self, data: Buffer) -> None:
        """Append a contiguous buffer."""
        view = memoryview(data).cast("B")
        self._digest(view)
        self.position += len(view)
        if len(view) + len(self._gathered) <= _GATHER_BYTES:
            # Many small tensors become few system calls.
            self._gathered += view
            return
        self._hand_over()
        self._put(view)

    def align(self, multiple: int) -> None:
        """Pad with zeros until the position is a multiple of ``multiple`` bytes."""
        self.write(bytes(-self.position % multiple))

    def finish(self) -> FileEntry:
        """Make the content durable and describe it."""
        self._hand_over()
        if self.position % self._chunk_bytes:
            self._chunks.append(self._hash.hexdigest())
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise write_error(error, "checkpoint file can't be made durable", self.path) from error
        self._close()
        chunks = tuple(self._chunks)
        return FileEntry(
            name=self.path.name,
            size=self.position,
            digest=combine(self._algorithm, chunks),
            chunk_bytes=self._chunk_bytes,
            chunks=chunks,
        )

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            try:
                os.close(fd)
            except OSError:
                if kind is None:
                    raise

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        try:
            # NFS may keep a write error for close.
            os.close(fd)
        except OSError as error:
            raise write_error(error, "checkpoint file can't be closed", self.path) from error

    def _digest(self, view: memoryview) -> None:
        filled = self.position % self._chunk_bytes
        while view:
            part = view[: self._chunk_bytes - filled]
            self._hash.update(part)
            filled += len(part)
            view = view[len(part) :]
            if filled == self._chunk_bytes:
                self._chunks.append(self._hash.hexdigest())
                self._hash = new_hash(self._algorithm)
                filled = 0

    def _hand_over(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._put(memoryview(gathered))

    def _put(self, view: memoryview) -> None:
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise write_error(error, "checkpoint file can't be written", self.path) from error


class FileReader:
    """Reads one listed file and gives out no byte whose chunk has not been verified.

    Raises DamagedError where size or digest are wrong, UnreadableError where the storage refuses.
    """

    def __init__(self, directory: Path, entry: FileEntry, algorithm: str) -> None:
        self.path = directory / entry.name
        self._entry, self._algorithm = entry, algorithm
        self._verified = bytearray(len(entry.chunks))
        self._held: tuple[int, memoryview] = (-1, memoryview(b""))
        self._fd = -1
        self._open()

    def read(self, offset: int, num_bytes: int) -> bytes:
        """``num_bytes`` from ``offset`` on."""
        data = bytearray(num_bytes)
        self.read_into(offset, memoryview(data))
        return bytes(data)

    def read_into(self, offset: int, destination: memoryview) -> None:
        """Fill ``destination`` (contiguous, of bytes) from ``offset`` on, whole chunks without a copy in between."""
        end = offset + len(destination)
        if offset < 0 or end > self._entry.size:
            raise DamagedError("checkpoint index points outside its file", where=str(self.path))
        position = offset
        while position < end:
            chunk = position // self._entry.chunk_bytes
            start, stop = self._bounds(chunk)
            part = destination[position - offset : min(stop, end) - offset]
            if len(part) == stop - start:
                self._load(chunk, part)
            else:
                part[:] = self._chunk(chunk)[position - start : position - start + len(part)]
            position += len(part)

    def read_scattered(self, pieces: Sequence[tuple[int, memoryview]], *, num_threads: int = 4) -> None:
        """Fill many destinations (offset in the file, contiguous bytes) at once; they must not overlap in the file.

        Straight into the destinations and hashed there, chunk by chunk in several threads: no byte is copied, and
        reading and hashing hide behind each other. After an error the destinations hold anything.
        """
        ordered = sorted((piece for piece in pieces if len(piece[1])), key=lambda piece: piece[0])
        self._check_scattered(ordered)
        if self._fd < 0:
            self._open()
        wanted = [(chunk, ordered[first:last]) for chunk, first, last in self._touched(ordered)]
        with ThreadPoolExecutor(num_threads, thread_name_prefix="rlaunch-read") as pool:
            try:
                for _ in pool.map(lambda task: self._scatter(*task), wanted):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _check_scattered(self, ordered: Sequence[tuple[int, memoryview]]) -> None:
        end = 0
        for offset, destination in ordered:
            if offset < end or offset + len(destination) > self._entry.size:
                raise DamagedError("checkpoint index points outside its file, or twice into it", where=str(self.path))
            end = offset + len(destination)

    def _touched(self, ordered: Sequence[tuple[int, memoryview]]) -> Iterator[tuple[int, int, int]]:
        """(chunk, first piece, one past the last piece) of every chunk that a piece lies in."""
        size, first = self._entry.chunk_bytes, 0
        chunk = -1
        while first < len(ordered):
            offset, _ = ordered[first]
            chunk = max(chunk + 1, offset // size)
            last = first
            while last < len(ordered) and ordered[last][0] < (chunk + 1) * size:
                last += 1
            yield chunk, first, last
            while first < last and ordered[first][0] + len(ordered[first][1]) <= (chunk + 1) * size:
                first += 1

    def _scatter(self, chunk: int, pieces: Sequence[tuple[int, memoryview]]) -> None:
        start, stop = self._bounds(chunk)
        views, position = [], start
        for offset, destination in pieces:
            begin, end = max(offset, start), min(offset + len(destination), stop)
            # What lies between belongs to the digest all the same.
            views += [memoryview(bytearray(begin - position)), destination[begin - offset : end - offset]]
            position = end
        views.append(memoryview(bytearray(stop - position)))
        value, position = new_hash(self._algorithm), start
        for batch in _batches(views):
            self._fill(batch, position)
            for view in batch:
                value.update(view)
                position += len(view)
        self._compare(chunk, value.hexdigest())

    def verify_rest(self) -> None:
        """Verify every chunk that no read has touched yet."""
        for chunk, verified in enumerate(self._verified):
            if not verified:
                self._chunk(chunk)

    def close(self) -> None:
        """Give back the descriptor and the chunk held; reading on opens the file again."""
        self._held = (-1, memoryview(b""))
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            # Nothing was written: whatever the storage says now, what was read is verified.
            with contextlib.suppress(OSError):
                os.close(fd)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            found = os.fstat(self._fd)
        except OSError as error:
            self.close()
            raise read_error(error, self.path) from error
        try:
            self._check(found)
        except DamagedError:
            self.close()
            raise

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise DamagedError("checkpoint file is not a regular file", where=str(self.path))
        if found.st_size != self._entry.size:
            raise DamagedError(
                "checkpoint file has the wrong size",
                where=str(self.path),
                why=f"{found.st_size} bytes instead of {self._entry.size}",
            )

    def _bounds(self, chunk: int) -> tuple[int, int]:
        start = chunk * self._entry.chunk_bytes
        return start, min(start + self._entry.chunk_bytes, self._entry.size)

    def _chunk(self, chunk: int) -> memoryview:
        held, data = self._held
        if held != chunk:
            start, stop = self._bounds(chunk)
            data = memoryview(bytearray(stop - start))
            self._load(chunk, data)
            self._held = (chunk, data)
        return data

    def _load(self, chunk: int, destination: memoryview) -> None:
        position, _ = self._bounds(chunk)
        if self._fd < 0:
            self._open()
        self._fill([destination], position)
        self._compare(chunk, hash_hex(self._algorithm, destination))

    def _fill(self, views: Sequence[memoryview], position: int) -> None:
        left = [view for view in views if view]
        try:
            while left:
                count = os.preadv(self._fd, left, position)
                if count == 0:
                    raise DamagedError("checkpoint file is cut short", where=str(self.path))
                position += count
                while left and count >= len(left[0]):
                    count -= len(left.pop(0))
                if left:
                    left[0] = left[0][count:]
        except OSError as error:
            raise read_error(error, self.path) from error

    def _compare(self, chunk: int, found: str) -> None:
        if found != self._entry.chunks[chunk]:
            raise DamagedError(
                "checkpoint file does not have the content that was written",
                where=str(self.path),
                why=f"the {self._algorithm} digest of chunk {chunk} is wrong",
            )
        self._verified[chunk] = 1


def _batches(views: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """The views in order, in groups that one system call takes and that are still in the cache when they are hashed."""
    batch: list[memoryview] = []
    num_bytes = 0
    for view in views:
        while view:
            part = view[: _BATCH_BYTES - num_bytes]
            batch.append(part)
            num_bytes += len(part)
            view = view[len(part) :]
            if num_bytes == _BATCH_BYTES or len(batch) == _BATCH_VIEWS:
                yield batch
                batch, num_bytes = [], 0
    if batch:
        yield batch
