"""Crash points and storage errors: the same operation again and again, struck each time at another system call."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.campaigns import marker, operations
from tests.faults.campaigns.operations import Operation
from tests.faults.campaigns.tally import Tally, hold
from tests.faults.campaigns.tracing import Call, calls, run

_WRITES = {"write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "close", "ftruncate", "fallocate"}
CHANGES_ROOM = frozenset({"openat", "mkdir", "rename", "link", "copy_file_range", "sync_file_range", *_WRITES})
"""Calls that can find a file system, or a quota, full; close and fsync because a network file system writes late."""
READS = "O_RDONLY"
LASTING = "-from-then-on"
CODES = ("EIO", "ESTALE", "EINTR", "ENOSPC", "EDQUOT")


def crash_points(tally: Tally) -> None:
    """SIGKILL on the way into every call; the state of the disk is then that of the moment between two calls."""
    for operation in _operations(is_long=tally.is_long):
        with _bench(operation) as bench:
            for call in bench.calls():
                name = f"{operation.name}/{call}"
                if tally.wants(name):
                    with tally.case("crash-points", name):
                        _strike(bench, call, f"inject={call.name}:signal=KILL:when={call.count}")
                        tally.counts["crash points"] += 1


def errors(tally: Tally) -> None:
    """Every call fails once with each error that it can have; and all calls of its name do, from it on."""
    core = {operation.name for operation in _operations(is_long=False)}
    for operation in _operations(is_long=tally.is_long):
        with _bench(operation) as bench:
            for number, call in enumerate(bench.calls()):
                for code in codes(call, number, is_long=tally.is_long and operation.name in core):
                    name = f"{operation.name}/{call}/{code}"
                    if tally.wants(name):
                        with tally.case("errors", name):
                            when = f"{call.count}{'+' if code.endswith(LASTING) else ''}"
                            _strike(bench, call, f"inject={call.name}:error={code.removesuffix(LASTING)}:when={when}")
                            tally.counts["errors injected"] += 1


def _operations(*, is_long: bool) -> list[Operation]:
    return [*operations.torch_free(is_long=is_long), *marker.operations()]


def codes(call: Call, number: int, *, is_long: bool) -> list[str]:
    """The errors for one call; the short form, and the long one's further operations, take turns."""
    room = call.name in CHANGES_ROOM and READS not in call.line
    # A descriptor is closed even where close reports EINTR, and Python passes over it.
    possible = [code for code in CODES if room or code not in ("ENOSPC", "EDQUOT")]
    possible.append(f"EIO{LASTING}")
    return possible if is_long else [possible[number % len(possible)]]


class Bench:
    """Places prepared alike, one for each strike."""

    def __init__(self, operation: Operation, scratch: Path) -> None:
        self.operation = operation
        self._scratch = scratch
        self._template = scratch / "template"
        operation.prepare(self._template)

    @contextmanager
    def place(self) -> Iterator[Path]:
        place = self._scratch / "place"
        shutil.copytree(self._template, place)
        try:
            yield place
        finally:
            shutil.rmtree(place)

    def calls(self) -> list[Call]:
        with self.place() as place:
            # What the first time alone does, such as imports, is no part of it.
            self.operation.act(place)
        with self.place() as place:
            return calls(lambda: self.operation.act(place), place)


def _strike(bench: Bench, call: Call, option: str) -> None:
    with bench.place() as place:
        ended = run(lambda: bench.operation.act(place), "-e", f"trace={call.name}", "-e", option)
        hold(ended.num_struck, "the fault did not happen", ended.trace[-3:])
        bench.operation.check(place, ended)


@contextmanager
def _bench(operation: Operation) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch:
        yield Bench(operation, Path(scratch))


def memory() -> str | None:
    """A directory in memory: what is struck here are system calls, and a disk only makes fsync slow."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
