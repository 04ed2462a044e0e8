"""Requests to a run: files that somebody's command writes, and that the first node's agent finds by listing.

A request is one small file, made whole under its final name or not at all. Asking twice is asking once: the second
asker finds the first one's file and waits for the same answer. A request for one attempt is no concern of the next; a
request to stop stands until there is a verdict.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Literal

from resilient_launch.core import durable
from resilient_launch.core.causes import Cause, Notice
from resilient_launch.core.errors import RefusedError
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths

Kind = Literal["checkpoint", "yield", "stop"]
POLL_S = 1.0
log = logging.getLogger("rlaunch.agent")


@dataclass(frozen=True, kw_only=True)
class ControlRequest:
    """What is asked. Times are seconds since the epoch.

    ``deadline`` is when a save must be over, None for no hurry. A yield may say that the job comes back ``held``, or
    not before ``begin``, and what for in ``cause``.
    """

    kind: Kind
    id: str
    asked_at: float
    cause: Cause = Cause.YIELDED
    deadline: float | None = None
    begin: float | None = None
    held: bool = False


def ask(
    paths: RunPaths,
    kind: Kind,
    *,
    attempt: int | None = None,
    cause: Cause = Cause.YIELDED,
    deadline: float | None = None,
    begin: float | None = None,
    held: bool = False,
) -> ControlRequest:
    """Leave the request for the first node's agent; returns it, or the like one that waits there already.

    ``attempt`` is whom it is for; None for any. Raises RefusedError when the run belongs to somebody else.
    """
    mine = ControlRequest(
        kind=kind,
        id=secrets.token_hex(8),
        asked_at=time.time(),
        cause=cause,
        deadline=deadline,
        begin=begin,
        held=held,
    )
    path = paths.control_request(kind, attempt)
    while True:
        try:
            if durable.claim_file(path, json.dumps(asdict(mine)).encode()):
                return mine
        except PermissionError as error:
            raise RefusedError(
                f"run {paths.name!r}", where=str(path.parent), why="belongs to somebody else", hint="ask its owner"
            ) from error
        standing = _read(paths, path.name)
        # None: its agent took it in this very moment.
        if standing is not None:
            return standing


def withdraw(paths: RunPaths, kind: Kind, *, attempt: int | None = None) -> None:
    """Take the request back, if it is still there."""
    paths.control_request(kind, attempt).unlink(missing_ok=True)


def pending(paths: RunPaths, attempt: int) -> list[ControlRequest]:
    """The requests that wait for ``attempt``.

    The directory is listed: on NFS the stat of a name that was absent may answer "absent" for a minute.
    """
    names = {f"{kind}.a{attempt:04d}.json" for kind in ("checkpoint", "yield")} | {"stop.json"}
    with contextlib.suppress(OSError):
        found = sorted(entry.name for entry in paths.control.iterdir() if entry.name in names)
        return [request for name in found if (request := _read(paths, name)) is not None]
    return []


def clear(paths: RunPaths, attempt: int, *, is_final: bool) -> None:
    """Remove what was asked of ``attempt`` and older ones; with ``is_final`` what was asked of any, and of the watcher.

    A watcher that Slurm killed as soon as it had requeued the job leaves the request that it answered.
    """
    with contextlib.suppress(OSError):
        for entry in paths.control.iterdir():
            kind, _, rest = entry.name.partition(".")
            number = rest.removesuffix(".json").removeprefix("a")
            is_old = kind in ("checkpoint", "yield") and number.isdigit() and int(number) <= attempt
            if is_old or (is_final and (entry.name == "stop.json" or entry.name.startswith("requeue-"))):
                entry.unlink(missing_ok=True)


def _read(paths: RunPaths, name: str) -> ControlRequest | None:
    try:
        record = json.loads((paths.control / name).read_bytes())
        known = {field: record[field] for field in ControlRequest.__dataclass_fields__ if field in record}
        return ControlRequest(**{**known, "cause": Cause(known.get("cause", Cause.YIELDED))})
    except (OSError, ValueError, TypeError, AttributeError):
        return None


class ControlWatch(threading.Thread):
    """Tells ``on_request`` of every request for ``attempt``, each once, about a second after it was made."""

    def __init__(self, paths: RunPaths, attempt: int, on_request: Callable[[ControlRequest], None]) -> None:
        super().__init__(name="rlaunch-control", daemon=True)
        self._paths, self._attempt, self._on_request = paths, attempt, on_request
        self._over = threading.Event()

    def stop(self) -> None:
        self._over.set()

    def run(self) -> None:
        seen: set[str] = set()
        while not self._over.is_set():
            for request in pending(self._paths, self._attempt):
                if request.id not in seen:
                    seen.add(request.id)
                    log.info("asked to %s", request.kind)
                    self._on_request(request)
            self._over.wait(POLL_S)


class ControlDesk:
    """What was asked of this attempt, for the first node's agent: saves that the gang has not agreed on yet, and the
    ``leave`` request, a yield or stop, that it ends for (None: none)."""

    def __init__(self, paths: RunPaths, attempt: int, events: EventWriter, *, retry_s: float) -> None:
        self._paths, self._attempt, self._events, self._retry_s = paths, attempt, events, retry_s
        self._requests: list[ControlRequest] = []
        self._asked_at = float("-inf")
        self.leave: ControlRequest | None = None

    def take(self, request: ControlRequest) -> Notice | None:
        """Accept a request; the notice that it brings, None for one that only wants a checkpoint."""
        if request.kind == "checkpoint":
            self._requests.append(request)
            self._asked_at = float("-inf")
            return None
        if self.leave is None or request.kind == "stop":
            self.leave = request
        cause = Cause.CANCELLED if request.kind == "stop" else request.cause
        return Notice(cause=cause, deadline=request.deadline, source=f"{request.kind} request")

    def is_due(self, now: float) -> bool:
        """Whether to ask the gang (again) at ``now``, on the monotonic clock; saying so counts as asking."""
        if not self._requests or now - self._asked_at < self._retry_s:
            return False
        self._asked_at = now
        return True

    def settle(self, step: int) -> None:
        """Every rank saves at ``step``: everything asked so far is served by it, which is said, its file withdrawn."""
        served, self._requests = self._requests, []
        withdraw(self._paths, "checkpoint", attempt=self._attempt)
        why = f"every rank saves at step {step}"
        for request in served:
            self._events.emit("decision", flush=True, what="checkpoint request", why=why, request=request.id, step=step)
