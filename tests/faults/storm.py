"""Many real processes take turns in one directory while they are killed and frozen; what happened is then checked.

``python -m tests.faults.storm --seconds 120`` prints one JSON object and fails when a promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import median
from typing import Any

from resilient_launch.policy import stagger
from resilient_launch.policy.stagger import Want
from resilient_launch.stagger import group as groups
from resilient_launch.stagger.group import Group, View
from resilient_launch.stagger.turn import HEARTBEAT_S, Turn, TurnState

MAX_RECOVERY_S = 35.0
MAX_INVERSIONS = 0.01
MAX_LISTINGS_PER_S = 10.0
VISIBLE_S = 1.0
"""A ticket that is younger may be missed by somebody who looked just before."""
SLACK_S = 2.0
"""How late a heartbeat may be on a busy machine."""
MAX_STORM_S = 120.0
"""How long a storm goes on, beyond its seconds, for what must have happened in it."""


class _LoggedGroup(Group):
    """Notes every listing, and whom it took for holders."""

    log_fd = -1

    def look(self, now: float) -> View:
        view = super().look(now)
        _log(self.log_fd, "look", holders=[entry.ticket.mark.pid for entry in view.holders])
        return view


def _log(fd: int, what: str, **fields: Any) -> None:
    line = json.dumps({"t": time.monotonic(), "wall": time.time(), "pid": os.getpid(), "what": what, **fields})
    os.write(fd, line.encode() + b"\n")


def _client(directory: Path, log: Path, writers: int, hold_s: float, seed: int) -> None:
    """Wants a turn, writes for a while, does something else, again and again."""
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    rng = random.Random(seed)
    group = _LoggedGroup(directory, writers=writers)
    group.log_fd = fd
    while True:
        fields = {
            "weight": rng.choice([1.0, 2.0, 4.0]),
            "write_s": hold_s,
            "mtbf_s": 3600.0,
            "age_s": rng.uniform(0, 60),
            "period_s": 1.0,
        }
        turn = Turn(group, f"client-{os.getpid()}", Want(id="", kind="save", arrived=0.0, **fields))
        _log(fd, "want", **fields)
        turn.start()
        while turn.view is None and not turn.granted.wait(0.05):
            pass
        _log(fd, "applied")
        turn.granted.wait()
        _log(fd, "grant")
        until = time.monotonic() + hold_s * rng.uniform(0.5, 1.5)
        while time.monotonic() < until and turn.state is TurnState.GRANTED:
            time.sleep(0.02)
        _log(fd, "lost" if turn.state is TurnState.LOST else "done")
        turn.release()
        turn.join()
        time.sleep(rng.uniform(0, hold_s))


@dataclass
class _Span:
    """From ``began`` to ``ended``."""

    began: float
    ended: float
    pid: int = 0
    fields: dict[str, float] = field(default_factory=dict)
    wall: float = 0.0
    visible: float = 0.0
    """Since when others can have seen a wait."""


def run_storm(
    directory: Path,
    *,
    num_processes: int,
    writers: int,
    seconds: float,
    hold_s: float,
    seed: int,
    freeze_s: float = 45.0,
    least: int = 0,
) -> dict[str, Any]:
    """Make a storm of ``seconds`` and return what was found, with ``problems`` as a list of sentences.

    It goes on until there were ``least`` turns and as many kills and freezes, but not beyond MAX_STORM_S for that.
    """
    rng = random.Random(seed)
    context = multiprocessing.get_context("fork")
    shared = directory / "group"
    # One probe of the mount for all, before the clock starts.
    Group(shared).prepare()
    with Group(shared).mutex():
        pass
    logs = directory / "logs"
    logs.mkdir()
    living: dict[int, BaseProcess] = {}
    kills: list[tuple[float, int]] = []
    freezes: list[_Span] = []
    thaw_at: dict[int, tuple[float, _Span]] = {}

    def spawn(number: int) -> None:
        process = context.Process(
            target=_client, args=(shared, logs / f"{number}.jsonl", writers, hold_s, seed * 1000 + number), daemon=True
        )
        process.start()
        assert process.pid is not None
        living[process.pid] = process

    def is_too_short() -> bool:
        num_turns = sum(record["what"] == "grant" for record in _read(logs))
        return min(num_turns, len(kills) + len(freezes)) < least and time.monotonic() < began + MAX_STORM_S

    count = num_processes
    for number in range(num_processes):
        spawn(number)
    observer = Group(shared, writers=writers)
    began = time.monotonic()
    try:
        while time.monotonic() < began + seconds or is_too_short():
            time.sleep(rng.uniform(1.5, 4.0))
            now = time.monotonic()
            for pid in [pid for pid, (until, _) in thaw_at.items() if until < now]:
                _thaw(pid, thaw_at)
            holders = [entry.ticket.mark.pid for entry in observer.look(time.time()).holders]
            victims = [pid for pid in (holders if rng.random() < 0.5 else list(living)) if pid not in thaw_at]
            victims = [pid for pid in victims if pid in living]
            if not victims:
                continue
            pid = rng.choice(victims)
            if rng.random() < 0.5 and len(thaw_at) < num_processes // 5:
                span = _Span(began=time.monotonic(), ended=float("inf"), pid=pid)
                os.kill(pid, signal.SIGSTOP)
                freezes.append(span)
                thaw_at[pid] = (now + rng.uniform(1.0, freeze_s), span)
            else:
                os.kill(pid, signal.SIGKILL)
                kills.append((time.monotonic(), pid))
                living.pop(pid).join()
                spawn(count)
                count += 1
    finally:
        ended = time.monotonic()
        for pid, process in living.items():
            os.kill(pid, signal.SIGKILL)
            process.join()
    return _check(logs, began, ended, num_processes, writers, kills, freezes)


def _thaw(pid: int, thaw_at: dict[int, tuple[float, _Span]]) -> None:
    _, span = thaw_at.pop(pid)
    span.ended = time.monotonic()
    os.kill(pid, signal.SIGCONT)


def _read(logs: Path) -> Iterator[dict[str, Any]]:
    for path in logs.iterdir():
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


def _check(
    logs: Path,
    began: float,
    ended: float,
    num_processes: int,
    writers: int,
    kills: list[tuple[float, int]],
    freezes: list[_Span],
) -> dict[str, Any]:
    killed = {pid: at for at, pid in kills}
    frozen: dict[int, list[_Span]] = defaultdict(list)
    for span in freezes:
        frozen[span.pid].append(span)
    looks: list[tuple[float, int, list[int]]] = []
    waits, holds = [], []
    wanting: dict[int, dict[str, Any]] = {}
    holding: dict[int, float] = {}
    num_lost = 0
    for record in sorted(_read(logs), key=lambda each: each["t"]):
        pid, at = record["pid"], record["t"]
        match record["what"]:
            case "look":
                looks.append((at, pid, record["holders"]))
            case "want":
                wanting[pid] = record
            case "applied":
                wanting[pid]["applied"] = at
            case "grant":
                want = wanting.pop(pid)
                waits.append(_wait_span(want, at))
                holding[pid] = at
            case "done" | "lost":
                num_lost += record["what"] == "lost"
                holds.append(_Span(began=holding.pop(pid), ended=at, pid=pid))
    holds += [_Span(began=at, ended=killed.get(pid, ended), pid=pid) for pid, at in holding.items()]
    unserved = [_wait_span(want, killed.get(pid, ended)) for pid, want in wanting.items()]
    # A frozen holder is sure to count until its earliest expiry.
    sure = [_until_expiry(hold, frozen, groups.EXPIRY_S - HEARTBEAT_S - SLACK_S) for hold in holds]
    problems = []

    most = max((sum(other.began <= hold.began < other.ended for other in sure) for hold in sure), default=0)
    if most > writers:
        problems.append(f"{most} writers at once where {writers} may")
    inversions = [hold for hold in sure if _is_inversion(hold, sure, writers, [*waits, *unserved], frozen)]
    share = len(inversions) / max(len(holds), 1)
    if share > MAX_INVERSIONS:
        problems.append(f"{len(inversions)} of {len(holds)} turns went to somebody else's")
    found = [_recovery_s(struck, looks, ended) for struck in _struck(kills, freezes, holds)]
    recoveries = [each for each in found if each is not None]
    slowest = max(recoveries, default=0.0)
    if slowest > MAX_RECOVERY_S:
        problems.append(f"a slot was recovered after {slowest:.1f} s")
    typical = median(span.ended - span.began for span in waits) if waits else 0.0
    # Whoever is frozen cannot be served, so its clock stops meanwhile.
    longest = max((_awake_s(span, frozen) for span in (*waits, *unserved)), default=0.0)
    round_s = num_processes * (ended - began) / max(len(holds), 1)
    # A light job rightly waits longer than a round: heavier ones that come later go first until its age outweighs them.
    # It starves if it gets nothing although it is among the next, which may all be held up by slots being recovered.
    spans = [*waits, *unserved]
    at_head = max(_at_head_s(span, holds, writers, spans, frozen) for span in spans)
    if not waits or at_head > MAX_RECOVERY_S:
        problems.append(f"somebody was among the next {writers} for {at_head:.1f} s")
    rate = len(looks) / (ended - began)
    if rate > MAX_LISTINGS_PER_S:
        problems.append(f"{rate:.1f} listings a second")
    return {
        "seconds": round(ended - began, 1),
        "turns": len(holds),
        "kills": len(kills),
        "freezes": len(freezes),
        "turns_lost": num_lost,
        "most_writers": most,
        "inversions": len(inversions),
        "slowest_recovery_s": round(slowest, 1),
        "median_recovery_s": round(median(recoveries), 1) if recoveries else None,
        "num_recoveries": len(recoveries),
        "median_wait_s": round(typical, 1),
        "round_s": round(round_s, 1),
        "longest_wait_s": round(longest, 1),
        "longest_among_the_next_s": round(at_head, 1),
        "listings_per_s": round(rate, 2),
        "problems": problems,
    }


def _wait_span(want: dict[str, Any], until: float) -> _Span:
    fields = {name: want[name] for name in ("weight", "write_s", "mtbf_s", "age_s", "period_s")}
    visible = want.get("applied", float("inf"))
    return _Span(began=want["t"], ended=until, pid=want["pid"], fields=fields, wall=want["wall"], visible=visible)


def _until_expiry(hold: _Span, frozen: dict[int, list[_Span]], expiry_s: float) -> _Span:
    """The turn, cut short where its holder was frozen for ``expiry_s`` or more."""
    ends = [
        freeze.began + expiry_s
        for freeze in frozen[hold.pid]
        if hold.began < freeze.began < hold.ended and freeze.ended - freeze.began > expiry_s
    ]
    return replace(hold, ended=min([hold.ended, *ends]))


def _rank(span: _Span, at: float) -> Any:
    want = Want(id=str(span.pid), kind="save", arrived=span.wall, **span.fields)
    return stagger.rank(want, span.wall + at - span.began)[:2]


def _is_inversion(
    hold: _Span, holds: list[_Span], writers: int, waits: list[_Span], frozen: dict[int, list[_Span]]
) -> bool:
    """Whether a turn was taken although no slot was left for somebody who was ahead and awake."""
    at = hold.began
    mine = next((span for span in waits if span.pid == hold.pid and span.ended == at), None)
    if mine is None:
        return False
    ahead = [
        span
        for span in waits
        if span.visible + VISIBLE_S < at < span.ended - VISIBLE_S
        and _rank(span, at) < _rank(mine, at)
        and not any(freeze.began < at and freeze.ended > at - groups.PATIENCE_S for freeze in frozen[span.pid])
    ]
    num_free = writers - sum(other.began <= at < other.ended for other in holds)
    return len(ahead) > num_free


def _at_head_s(
    wait: _Span, holds: list[_Span], writers: int, waits: list[_Span], frozen: dict[int, list[_Span]]
) -> float:
    """How long, awake, a waiter had been one of the next ``writers`` when its wait ended."""
    since = min(wait.visible, wait.ended)
    for at in sorted((hold.began for hold in holds if wait.visible < hold.began < wait.ended), reverse=True):
        rank = _rank(wait, at)
        # Whoever was served at that moment was waiting right before it; whoever is silent is passed over.
        others = [
            span
            for span in waits
            if span is not wait
            and span.visible < at <= span.ended
            and not any(freeze.began + groups.PATIENCE_S < at < freeze.ended for freeze in frozen[span.pid])
        ]
        if sum(_rank(other, at) < rank for other in others) >= writers:
            since = at
            break
    return _awake_s(replace(wait, began=since), frozen)


def _struck(kills: list[tuple[float, int]], freezes: list[_Span], holds: list[_Span]) -> Iterator[_Span]:
    """Holders that were killed, or frozen beyond their expiry: from when, and until when they could do nothing."""
    frozen_for_long = [span for span in freezes if span.ended - span.began > groups.EXPIRY_S]
    for span in [*(_Span(began=at, ended=float("inf"), pid=pid) for at, pid in kills), *frozen_for_long]:
        if any(hold.pid == span.pid and hold.began < span.began <= hold.ended for hold in holds):
            yield span


def _recovery_s(struck: _Span, looks: list[tuple[float, int, list[int]]], ended: float) -> float | None:
    """How long until nobody who looks takes the slot for held; None when the storm was over before one could tell."""
    held = [at for at, _, pids in looks if struck.began < at < struck.ended and struck.pid in pids]
    last = max(held, default=struck.began)
    after = (at - struck.began for at, looker, _ in looks if at > last and looker != struck.pid)
    return next(after, ended - struck.began if ended - struck.began > MAX_RECOVERY_S else None)


def _awake_s(span: _Span, frozen: dict[int, list[_Span]]) -> float:
    asleep = sum(max(0.0, min(freeze.ended, span.ended) - max(freeze.began, span.began)) for freeze in frozen[span.pid])
    return span.ended - span.began - asleep


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--processes", type=int, default=64)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--hold", type=float, default=3.0, help="mean seconds of a turn")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlaunch-storm-") as name:
        found = run_storm(
            Path(name),
            num_processes=given.processes,
            writers=given.writers,
            seconds=given.seconds,
            hold_s=given.hold,
            seed=given.seed,
        )
    print(json.dumps({"schema": 1, **found}))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    assert threading.active_count() == 1
    sys.exit(main())
