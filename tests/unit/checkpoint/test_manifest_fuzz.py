"""Whatever a manifest holds, it is read as one, or refused as damaged or unsupported; no name leaves the directory."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.checkpoint.store import DamagedError, Facts, FileEntry, Manifest, UnsupportedError
from resilient_launch.checkpoint.store.hashing import DEFAULT_ALGORITHM, combine, hash_hex
from resilient_launch.checkpoint.store.manifest import parse_manifest, seal
from resilient_launch.core.ids import CheckpointId

PATH = Path("/run/checkpoints/step-00000007.a0001.r0/MANIFEST.json")
CHUNK = hash_hex(DEFAULT_ALGORITHM, b"content")
FILE = FileEntry(name="a.bin", size=7, digest=combine(DEFAULT_ALGORITHM, (CHUNK,)), chunk_bytes=8, chunks=(CHUNK,))
SOUND = Manifest(id=CheckpointId(1, 0, 7), uuid="u", saved_at=1.5, facts=Facts(run_id="r"), files=(FILE,)).render()
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
)
HOSTILE = st.sampled_from(
    ["../a", "/etc/passwd", "", ".", "..", "a/b", "a\0", "é", 10**400, -1, 1 << 62, [[]] * 3, "sha256"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | HOSTILE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def must_be_tidy(data: bytes) -> None:
    try:
        manifest = parse_manifest(data, PATH)
    except (DamagedError, UnsupportedError) as error:
        assert str(PATH) in error.where
    else:
        assert parse_manifest(data, PATH).render() == manifest.render()
        for entry in manifest.files:
            assert (PATH.parent / entry.name).resolve().parent == PATH.parent and entry.name != PATH.name


def places(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree, as the keys that lead there."""
    if isinstance(record, dict):
        inside = [place for key, value in record.items() for place in places(value, (*path, key))]
    elif isinstance(record, list):
        inside = [place for number, value in enumerate(record) for place in places(value, (*path, number))]
    else:
        inside = []
    return [path, *inside]


BODY = {key: value for key, value in json.loads(SOUND).items() if key != "manifest_digest"}
PLACES = [place for place in places(BODY) if place]


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_arbitrary_bytes(data: bytes) -> None:
    must_be_tidy(data)


@given(st.integers(0, len(SOUND) - 1), st.integers(1, 255), st.integers(0, len(SOUND)))
def test_a_changed_byte_and_a_cut_are_seen(at: int, mask: int, length: int) -> None:
    data = bytearray(SOUND)
    data[at] ^= mask
    for each in (bytes(data), SOUND[:length] if length < len(SOUND) else b""):
        try:
            parse_manifest(each, PATH)
        except DamagedError:
            continue
        raise AssertionError("damage was read")


@given(st.sampled_from(PLACES), VALUES)
def test_any_value_in_any_place_under_a_right_digest(place: tuple[Any, ...], value: Any) -> None:
    record = json.loads(json.dumps(BODY))
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    must_be_tidy(seal(record))


@given(st.sampled_from(PLACES))
def test_anything_may_be_missing(place: tuple[Any, ...]) -> None:
    record = json.loads(json.dumps(BODY))
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    must_be_tidy(seal(record))


@pytest.mark.parametrize("key", ["saved_at", "training_s"])
def test_a_number_that_no_clock_shows(key: str) -> None:
    must_be_tidy(seal({**BODY, key: 10**400}))


def test_a_digest_of_a_later_version() -> None:
    must_be_tidy(seal({**BODY, "digest_algorithm": "blake9"}))


def test_depth_without_end() -> None:
    must_be_tidy(b"[" * 200_000)
    must_be_tidy(b'{"a":' * 200_000)
