"""Event files that were torn, overwritten or never ours: what can be read is, and the rest is passed over."""

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.core.events import KINDS, read_events

EVENTS: list[dict[str, Any]] = [
    {"kind": "attempt", "job_id": "7", "slurm_restart_count": 0, "nodes": ["n1"]},
    {"kind": "window", "first": 0, "mono0": 1.0, "end_s": [0.1, 0.2]},
    {"kind": "checkpoint", "step": 2, "status": "durable", "reason": "time"},
    {"kind": "end", "cause": "finished", "step": 2},
]
SOUND = b"".join(json.dumps({"v": 1, "t": 5.5, "mono": 1.5, "rank": 0, **event}).encode() + b"\n" for event in EVENTS)


def must_be_tidy(data: bytes) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "a.jsonl").write_bytes(data)
        found = list(read_events(Path(scratch)))
    for event in found:
        assert KINDS.get(event["kind"], frozenset()) <= event.keys()
    return [event["kind"] for event in found]


@given(st.binary(max_size=200) | st.lists(st.text(max_size=20)).map(lambda lines: "\n".join(lines).encode()))
def test_arbitrary_bytes(data: bytes) -> None:
    must_be_tidy(data)


@given(st.integers(0, len(SOUND) - 1), st.binary(min_size=1, max_size=4))
def test_damage_costs_the_lines_that_it_hits(at: int, garbage: bytes) -> None:
    found = must_be_tidy(SOUND[:at] + garbage + SOUND[at + len(garbage) :])
    hit = SOUND[at : at + len(garbage)].count(b"\n") + 1
    assert len([kind for kind in found if kind in KINDS]) >= 4 - hit


@given(st.integers(0, len(SOUND)))
def test_a_torn_tail_costs_its_line_alone(length: int) -> None:
    assert len(must_be_tidy(SOUND[:length])) == SOUND[:length].count(b"\n")


def test_depth_without_end_and_numbers_without_end() -> None:
    assert must_be_tidy(b"[" * 200_000 + b"\n" + b'{"kind":' + b"9" * 10_000 + b"}\n" + SOUND) == [
        "attempt",
        "window",
        "checkpoint",
        "end",
    ]


@pytest.mark.parametrize("beginning", [b"\x1f\x8b", b"\x1f\x8b\x08", gzip.compress(b"{", mtime=0)[:12]])
def test_lines_that_begin_like_a_packed_file_are_lines(beginning: bytes) -> None:
    assert must_be_tidy(beginning + SOUND[len(beginning) :]) == must_be_tidy(SOUND)[1:]


def test_a_packed_file_that_was_damaged_costs_what_follows() -> None:
    packed = bytearray(gzip.compress(SOUND * 200))
    packed[len(packed) // 2] ^= 0xFF
    assert len(must_be_tidy(bytes(packed))) < 200 * len(must_be_tidy(SOUND))
