"""A file written straight from memory is the file that the plain writer makes, wherever it lies."""

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from leaving_out import leave_out

from resilient_launch.checkpoint.background.progress import Listener, Teller
from resilient_launch.checkpoint.store.direct import write_image
from resilient_launch.checkpoint.store.files import FileWriter
from resilient_launch.core.errors import CheckpointError


def image_of(data: bytes) -> memoryview:
    mapped = mmap.mmap(-1, len(data) + 4096)
    mapped[: len(data)] = data
    # What follows the data in its last block must not reach the file.
    mapped[len(data) : len(data) + 10] = b"garbage..."
    return memoryview(mapped)


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 8192, 8193, 100_000])
@pytest.mark.parametrize("chunk_bytes", [4096, 8192, 1000])
@pytest.mark.parametrize("where", ["here", "/dev/shm"])
def test_it_is_what_the_plain_writer_makes(tmp_path: Path, num_bytes: int, chunk_bytes: int, where: str) -> None:
    directory = tmp_path if where == "here" else Path(where)
    leave_out("memory that refuses direct writes", [] if os.access(directory, os.W_OK) else [f"a writable {directory}"])
    data = os.urandom(num_bytes)
    name = f"direct-{os.getpid()}"
    try:
        entry = write_image(
            directory, name, image_of(data), num_bytes, algorithm="xxh3-128", chunk_bytes=chunk_bytes, num_threads=2
        )
        assert (directory / name).read_bytes() == data
    finally:
        (directory / name).unlink()
    with FileWriter(tmp_path, name, chunk_bytes=chunk_bytes) as plain:
        plain.write(data)
        assert plain.finish() == entry


def test_an_existing_file_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"mine")
    with pytest.raises(CheckpointError, match="File exists"):
        write_image(tmp_path, "a", image_of(b"x"), 1, algorithm="xxh3-128", chunk_bytes=4096)
    assert (tmp_path / "a").read_bytes() == b"mine"


def test_nothing_is_written_before_it_is_in_place(tmp_path: Path) -> None:
    data = os.urandom(50_000)
    image = image_of(bytes(50_000))
    teller, told = Teller(), 0
    listener = Listener(teller.fd, lambda: False)
    is_asked = threading.Event()
    awaited: list[tuple[int, int]] = []

    def await_bytes(num_bytes: int) -> None:
        is_asked.set()
        listener.await_bytes(num_bytes)
        awaited.append((num_bytes, told))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(
            write_image,
            tmp_path,
            "a",
            image,
            50_000,
            algorithm="xxh3-128",
            chunk_bytes=4096,
            await_bytes=await_bytes,
        )
        assert is_asked.wait(60)
        for start in range(0, 50_000, 10_000):
            assert not writing.done()
            image[start : start + 10_000] = data[start : start + 10_000]
            told = start + 10_000
            teller.tell(told)
        writing.result()
    teller.close()
    assert len(awaited) == 13 and all(num_bytes <= then for num_bytes, then in awaited)
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("ending", ["its copy was given up", "its training is gone"])
def test_an_abandoned_file_is_no_entry(tmp_path: Path, ending: str) -> None:
    teller = Teller()
    teller.tell(4096)
    if ending == "its copy was given up":
        teller.give_up()
    listener = Listener(teller.fd, lambda: ending == "its training is gone")
    with pytest.raises(CheckpointError, match="abandoned"):
        write_image(
            tmp_path,
            "a",
            image_of(bytes(9000)),
            9000,
            algorithm="xxh3-128",
            chunk_bytes=4096,
            await_bytes=listener.await_bytes,
        )
    teller.close()
