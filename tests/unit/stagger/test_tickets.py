from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_launch.policy.stagger import Want, WriteSample
from resilient_launch.stagger import tickets
from resilient_launch.stagger.processes import ProcessMark
from resilient_launch.stagger.tickets import Member, Ticket

ID = "0123456789abcdef"


def ticket(**fields: Any) -> Ticket:
    want = Want(id=ID, kind="save", weight=8.0, write_s=30.0, mtbf_s=9e4, age_s=60.0, period_s=600.0, arrived=1e9)
    known = {"run": "/runs/a", "uid": os.getuid(), "job_id": "17", "mark": ProcessMark.of_self(), "want": want}
    return Ticket(**{**known, **fields})


def record(**fields: Any) -> bytes:
    return json.dumps({**json.loads(tickets.encode_ticket(ticket())), **fields}).encode()


def test_a_ticket_survives_the_file(tmp_path: Path) -> None:
    path = tmp_path / tickets.ticket_name(ID)
    path.write_bytes(tickets.encode_ticket(ticket()))
    assert tickets.read_ticket(path, ID) == ticket()


def test_a_member_survives_the_file(tmp_path: Path) -> None:
    sample = WriteSample(num_writers=2, seconds=3.5, num_bytes=4e9)
    member = Member(run="a", weight=1, write_s=2, mtbf_s=3, period_s=4, samples=(sample,))
    path = tmp_path / tickets.member_name("a")
    path.write_bytes(tickets.encode_member(member))
    assert tickets.read_member(path) == member


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b"[" * 5000,
        record(v=2),
        record(kind="steal"),
        record(weight=math.nan),
        record(weight=math.inf),
        record(weight=0),
        record(weight=True),
        record(weight="8"),
        record(write_s=-1),
        record(mtbf_s=1e300),
        record(age_s=None),
        record(pid=1.5),
        record(pid=-1),
        record(pid=2**70),
        record(run="a\x1b[2J"),
        record(run="a" * 300),
        record(place=["x"]),
        record(run="a", padding="x" * tickets.MAX_BYTES),
    ],
    # Not the records, which name this process: every worker must know the tests by the same names.
    ids=lambda _: "record",
)
def test_what_is_no_ticket_is_passed_over(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(data)
    assert tickets.read_ticket(path, ID) is None
    assert tickets.read_member(path) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    path = Path(f"/dev/shm/rlaunch-test-{os.getpid()}")
    path.write_bytes(data)
    try:
        assert tickets.read_ticket(path, ID) is None
    finally:
        path.unlink()


def test_links_pipes_and_directories_are_not_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_bytes(tickets.encode_ticket(ticket()))
    link, pipe, folder, hard = (tmp_path / name for name in ("link", "pipe", "folder", "hard"))
    link.symlink_to(real)
    os.mkfifo(pipe)
    folder.mkdir()
    assert tickets.read_ticket(link, ID) is None
    assert tickets.read_ticket(pipe, ID) is None
    assert tickets.read_ticket(folder, ID) is None
    hard.hardlink_to(real)
    assert tickets.read_ticket(hard, ID) is None


@pytest.mark.parametrize(
    "name",
    [
        "wait-x.json",
        f"wait-{ID}",
        f"hold-{ID}.json",
        f"hold-{'9' * 20}-{ID}.json",
        f"../wait-{ID}.json",
        f"wait-{ID.upper()}.json",
        f"hold-1-{ID}.json.tmp",
        "wait",
    ],
)
def test_names_that_are_none(name: str) -> None:
    assert tickets.parse_ticket_name(name) is None


def test_names_that_are_some() -> None:
    assert tickets.parse_ticket_name(tickets.ticket_name(ID)) == (ID, None)
    assert tickets.parse_ticket_name(tickets.ticket_name(ID, 12.3)) == (ID, 12.0)
    assert tickets.is_member_name(tickets.member_name("/any/path/../at/all\n"))


def test_a_process_is_gone_only_on_proof() -> None:
    import subprocess
    import sys

    mine = ProcessMark.of_self()
    assert not mine.is_gone()
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    pid = child.pid
    child.wait()
    assert ProcessMark(place=mine.place, pid=pid, started=5).is_gone()
    # Somebody else has its number now.
    assert ProcessMark(place=mine.place, pid=mine.pid, started=mine.started - 1).is_gone()
    assert not ProcessMark(place="elsewhere", pid=pid, started=5).is_gone()
