"""Many destinations of one file at once: every byte in its place, every touched chunk verified, no other one read."""

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_launch.checkpoint.store.errors import DamagedError
from resilient_launch.checkpoint.store.files import FileReader, FileWriter
from resilient_launch.checkpoint.store.manifest import FileEntry


def write(directory: Path, data: bytes, chunk_bytes: int) -> FileEntry:
    with FileWriter(directory, "a", chunk_bytes=chunk_bytes) as file:
        file.write(data)
        return file.finish()


def read(directory: Path, entry: FileEntry, spans: list[tuple[int, int]]) -> list[bytes]:
    destinations = [bytearray(stop - start) for start, stop in spans]
    with FileReader(directory, entry, "xxh3-128") as reader:
        reader.read_scattered(
            [(start, memoryview(into)) for (start, _), into in zip(spans, destinations, strict=True)], num_threads=2
        )
    return [bytes(into) for into in destinations]


@settings(deadline=None, max_examples=200)
@given(
    cuts=st.lists(st.integers(0, 5000), max_size=40, unique=True),
    chunk_bytes=st.sampled_from([16, 100, 4096]),
    skip=st.sets(st.integers(0, 40)),
    order=st.randoms(use_true_random=False),
)
def test_every_destination_gets_its_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    cuts: list[int],
    chunk_bytes: int,
    skip: set[int],
    order: Random,
) -> None:
    data = bytes((7 * index + index // 251) % 256 for index in range(5000))
    directory = tmp_path_factory.mktemp("file")
    entry = write(directory, data, chunk_bytes)
    edges = sorted(cuts)
    spans = [span for number, span in enumerate(pairwise(edges)) if number not in skip]
    order.shuffle(spans)
    assert read(directory, entry, spans) == [data[start:stop] for start, stop in spans]


def test_a_flipped_bit_is_found_in_what_is_read_and_between(tmp_path: Path) -> None:
    data = bytearray(range(200))
    entry = write(tmp_path, bytes(data), 50)
    # In chunk 1, between the two pieces.
    data[75] ^= 1
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DamagedError, match="chunk 1"):
        read(tmp_path, entry, [(40, 60), (90, 110)])
    assert read(tmp_path, entry, [(0, 50), (100, 200)]) == [bytes(data[:50]), bytes(data[100:])]


@pytest.mark.parametrize("spans", [[(0, 201)], [(0, 10), (9, 20)]])
def test_an_index_that_points_outside_or_twice_is_damage(tmp_path: Path, spans: list[tuple[int, int]]) -> None:
    entry = write(tmp_path, bytes(200), 50)
    with pytest.raises(DamagedError, match="outside"):
        read(tmp_path, entry, spans)


def test_a_file_that_was_cut_meanwhile_is_damage(tmp_path: Path) -> None:
    entry = write(tmp_path, bytes(200), 50)
    with FileReader(tmp_path, entry, "xxh3-128") as reader:
        (tmp_path / "a").write_bytes(bytes(120))
        with pytest.raises(DamagedError, match="cut short"):
            reader.read_scattered([(0, memoryview(bytearray(200)))])
