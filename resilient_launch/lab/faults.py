"""The fault schedule of a configuration: watches the run's events, calls the fake cluster's verbs when due."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.config.schema import (
    At,
    Cancel,
    ControllerDown,
    ControllerUp,
    Drain,
    FailNode,
    Fault,
    Fill,
    KillWorker,
    LaunchConfig,
    Maintenance,
    NoAccounting,
    Preempt,
    ResumeNode,
    SlowAccounting,
    StopWorker,
    TimeLimit,
)
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.launch.clusters import Connection
from resilient_launch.report.attempts import AttemptRow, attempt_rows
from resilient_launch.report.state import read_verdict

POLL_S = 0.1
_ENDS_THE_ATTEMPT = (Preempt, TimeLimit, FailNode, Cancel)


@contextlib.contextmanager
def driving(
    config: LaunchConfig, paths: RunPaths, connection: Connection, job_id: str, *, say: Callable[[str], None]
) -> Iterator[None]:
    """Drive the configuration's faults while the block runs. ``say`` hears of each."""
    ended = threading.Event()
    driver = threading.Thread(
        target=_drive, args=(config, paths, connection, job_id, say, ended), name="rlaunch-faults", daemon=True
    )
    driver.start()
    try:
        yield
    finally:
        ended.set()
        driver.join()


def _drive(
    config: LaunchConfig,
    paths: RunPaths,
    connection: Connection,
    job_id: str,
    say: Callable[[str], None],
    ended: threading.Event,
) -> None:
    for fault in config.faults:
        row = _wait_until_due(fault.at, paths, ended)
        if row is None:
            say(f"fault {fault.verb}: its moment never came")
            return
        try:
            _strike(fault, config, paths, connection, job_id, row)
        except RlaunchError as error:
            say(f"fault {fault.verb}: {error}")
            return
        say(f"fault {fault.verb} at step {row.end_step}")
        # The next fault belongs to what comes after this one.
        _wait(ended, partial(_has_moved_on, paths, row.number, fault))


def _has_moved_on(paths: RunPaths, number: int, fault: Fault) -> bool:
    if not isinstance(fault, _ENDS_THE_ATTEMPT):
        return True
    rows = attempt_rows(paths)
    return bool(rows) and rows[-1].number > number


def _wait_until_due(at: At, paths: RunPaths, ended: threading.Event) -> AttemptRow | None:
    """The running attempt at the moment that ``at`` names; None when the run was over before."""
    found: list[AttemptRow] = []
    began: float | None = None

    def is_due() -> bool:
        nonlocal began
        rows = attempt_rows(paths)
        if not rows or rows[-1].cause is not None or rows[-1].end_step is None:
            return False
        step = rows[-1].end_step
        if began is None and step > (rows[-1].resume_step or 0):
            began = time.monotonic()
        due = (
            step >= at.step
            if at.step is not None
            else began is not None and time.monotonic() - began >= (at.after_s or 0.0)
        )
        if due:
            found.append(rows[-1])
        return due

    return found[0] if _wait(ended, lambda: is_due() or read_verdict(paths) is not None) and found else None


def _wait(ended: threading.Event, condition: Callable[[], bool]) -> bool:
    while not condition():
        if ended.wait(POLL_S):
            return False
    return True


def _strike(
    fault: Fault, config: LaunchConfig, paths: RunPaths, connection: Connection, job_id: str, row: AttemptRow
) -> None:
    fake = connection.fake
    assert fake is not None, "the configuration allows faults on the fake cluster only"
    match fault:
        case Preempt():
            fake.preempt(job_id)
        case TimeLimit(in_s=in_s):
            # One second over the signal's lead: the signal comes at once, and with all its lead still ahead.
            fake.time_limit(job_id, in_s if in_s is not None else config.signal_lead_s + 1.0)
        case FailNode(node=index, partition_network=network_only):
            fake.fail_node(row.nodes[index], network_only=network_only)
        case Drain(node=index):
            fake.drain(row.nodes[index], reason="a fault of the configuration")
        case KillWorker(rank=rank, signal=name):
            _signal_worker(paths, rank, signal.Signals[f"SIG{name}"])
        case StopWorker(rank=rank):
            _signal_worker(paths, rank, signal.SIGSTOP)
        case Cancel():
            connection.scheduler.cancel(job_id)
        case _:
            _strike_cluster(fault, fake)


def _strike_cluster(fault: Fault, fake: FakeCluster) -> None:
    """What happens to the cluster as a whole."""
    match fault:
        case ResumeNode():
            for node in fake.status()["nodes"]:
                if node["reason"]:
                    fake.resume_node(node["name"])
        case Maintenance(in_s=in_s, for_s=for_s):
            fake.maintenance(in_s=in_s, for_s=for_s)
        case Fill(num_jobs=num_jobs, for_s=for_s):
            fake.fill(num_jobs=num_jobs, for_s=for_s)
        case SlowAccounting(delay_s=delay_s):
            fake.slow_accounting(delay_s)
        case NoAccounting():
            fake.no_accounting()
        case ControllerDown():
            fake.controller_down()
        case ControllerUp():
            fake.controller_up()
        case _:
            raise RlaunchError(f"fault {fault.verb!r}", why="has no driver")


def _signal_worker(paths: RunPaths, rank: int, number: signal.Signals) -> None:
    """The fake's nodes are this machine: a worker's process is one of the newest group that its node's agent began."""
    begun = [event for event in read_events(paths.events) if event["kind"] == "group_begin"]
    for event in sorted(begun, key=lambda event: float(event["t"]), reverse=True):
        if str(rank) in event["pids"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(event["pids"][str(rank)]), number)
                return
            break
    raise RlaunchError(f"worker {rank}", why="is not running")
