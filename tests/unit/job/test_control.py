"""Requests to a run: whole or not at all, asked twice is asked once, and only for whom they are meant."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from resilient_launch.core.causes import Cause, Notice
from resilient_launch.core.events import EventWriter, read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import control
from resilient_launch.job.control import ControlDesk, ControlRequest, ControlWatch


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    for name in ("control", "events"):
        (tmp_path / "run" / name).mkdir(parents=True)
    return RunPaths(tmp_path / "run")


def test_a_request_arrives_as_it_was_made(paths: RunPaths) -> None:
    made = control.ask(paths, "yield", attempt=3, cause=Cause.MAINTENANCE, deadline=5.0, begin=7.0, held=False)
    assert control.pending(paths, 3) == [made]
    assert made.cause is Cause.MAINTENANCE
    assert (made.deadline, made.begin, made.held) == (5.0, 7.0, False)


def test_many_askers_share_one_request(paths: RunPaths) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = {request.id for request in pool.map(lambda _: control.ask(paths, "checkpoint", attempt=0), range(32))}
    assert len(ids) == 1
    assert [path.name for path in paths.control.iterdir()] == ["checkpoint.a0000.json"]


def test_a_request_for_one_attempt_is_no_concern_of_the_next_but_a_stop_is(paths: RunPaths) -> None:
    control.ask(paths, "yield", attempt=0)
    control.ask(paths, "checkpoint", attempt=0)
    stop = control.ask(paths, "stop")
    assert control.pending(paths, 1) == [stop]
    control.clear(paths, 0, is_final=False)
    assert [path.name for path in paths.control.iterdir()] == ["stop.json"]
    control.clear(paths, 0, is_final=True)
    assert not list(paths.control.iterdir())


def test_clearing_leaves_what_is_not_ours(paths: RunPaths) -> None:
    control.ask(paths, "yield", attempt=7)
    paths.requeue_request("5", 0).write_bytes(b"")
    control.clear(paths, 6, is_final=False)
    assert sorted(path.name for path in paths.control.iterdir()) == ["requeue-5-0", "yield.a0007.json"]
    control.clear(paths, 6, is_final=True)
    assert [path.name for path in paths.control.iterdir()] == ["yield.a0007.json"]


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"kind": "stop"}', b'{"cause": "none"}', b"\xff"])
def test_a_file_that_is_no_request_is_passed_over(paths: RunPaths, content: bytes) -> None:
    paths.control_request("stop").write_bytes(content)
    assert control.pending(paths, 0) == []


def test_the_watch_tells_of_each_request_once(paths: RunPaths) -> None:
    seen: list[ControlRequest] = []
    told = threading.Semaphore(0)

    def hear(request: ControlRequest) -> None:
        seen.append(request)
        told.release()

    watch = ControlWatch(paths, 2, hear)
    watch.start()
    first = control.ask(paths, "checkpoint", attempt=2)
    assert told.acquire(timeout=20)
    control.withdraw(paths, "checkpoint", attempt=2)
    second = control.ask(paths, "checkpoint", attempt=2)
    assert told.acquire(timeout=20)
    # By the next request the watch has looked at the second one again.
    third = control.ask(paths, "yield", attempt=2)
    assert told.acquire(timeout=20)
    watch.stop()
    watch.join(timeout=20)
    assert [request.id for request in seen] == [first.id, second.id, third.id]


def test_asked_saves_are_asked_again_until_they_are_agreed_on(paths: RunPaths) -> None:
    events = EventWriter(paths.events / "a0000.n0000.jsonl", attempt=0)
    asked = ControlDesk(paths, 0, events, retry_s=3.0)
    assert not asked.is_due(0.0)
    request = control.ask(paths, "checkpoint", attempt=0)
    assert asked.take(request) is None
    assert asked.is_due(10.0)
    assert not asked.is_due(12.9)
    assert asked.is_due(13.1)
    asked.settle(7)
    events.close()
    (told,) = read_events(paths.events)
    assert (told["kind"], told["request"], told["step"]) == ("decision", request.id, 7)
    assert not asked.is_due(99.0)
    assert control.pending(paths, 0) == []


def test_a_request_to_leave_is_a_notice_and_a_stop_overrules_a_yield(paths: RunPaths) -> None:
    events = EventWriter(paths.events / "a0000.n0000.jsonl", attempt=0)
    desk = ControlDesk(paths, 0, events, retry_s=3.0)
    first = control.ask(paths, "yield", attempt=0, cause=Cause.MAINTENANCE, deadline=99.0)
    stop = control.ask(paths, "stop")
    assert desk.take(first) == Notice(cause=Cause.MAINTENANCE, deadline=99.0, source="yield request")
    assert desk.take(stop) == Notice(cause=Cause.CANCELLED, deadline=None, source="stop request")
    assert desk.take(first) is not None and desk.leave == stop
    assert not desk.is_due(10.0)
    events.close()
