"""Every disk that a power cut may leave behind: each prefix of the record, and each legal order across its syncs.

The model knows no more than POSIX promises: what was synced is there; of what was not, any part may be, in any
combination, a write also torn in the middle or as zeros of the right length. Names that change in one call change
together.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from resilient_launch.checkpoint import store
from resilient_launch.core.durable import fsync_dir
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_attempts
from resilient_launch.policy.retention import newest
from tests.faults.campaigns import operations
from tests.faults.campaigns.recording import ROOT, Data, Entry, Mark, Recording, Step, Sync, record, say_mark
from tests.faults.campaigns.states import Shape, must_load, save
from tests.faults.campaigns.strikes import memory
from tests.faults.campaigns.tally import Tally, hold

WHOLE, ABSENT, TORN, ZEROS = "whole", "absent", "torn", "zeros"
Disk = tuple[tuple[str, bytes | None], ...]
"""Paths in order, None for a directory."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Something to record, and what must hold of a disk after it has said ``marks``."""

    name: str
    act: Callable[[Path], object]
    check: Callable[[Path, Sequence[str]], object]


def reordering(tally: Tally) -> None:
    most = 600 if tally.is_long else 24
    for history in _histories(is_long=tally.is_long):
        with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch:
            warm, place = Path(scratch) / "warm", Path(scratch) / "place"
            for each in (warm, place):
                each.mkdir()
            history.act(warm)
            recording = record(history.act, place)
            hold(any(isinstance(step, Sync) for step in recording.steps), "nothing was recorded")
            seen: set[tuple[bytes, tuple[str, ...]]] = set()
            for prefix in range(len(recording.steps) + 1):
                if not tally.wants(f"{history.name}/{prefix}"):
                    continue
                tally.counts["prefixes"] += 1
                marks = tuple(step.text for step in recording.steps[:prefix] if isinstance(step, Mark))
                for disk in disks(recording, prefix, most=most, seed=tally.seed):
                    key = (_digest(disk), marks)
                    if key not in seen:
                        seen.add(key)
                        with tally.case("reordering", f"{history.name}/{prefix}"), _laid_out(disk, Path(scratch)) as at:
                            history.check(at, marks)
            tally.counts["disks after reordering"] += len(seen)


def disks(recording: Recording, prefix: int, *, most: int, seed: int) -> Iterator[Disk]:
    """The disks that a cut after ``prefix`` steps may leave: all of them, or ``most`` of them drawn with ``seed``."""
    synced: dict[int, int] = {}
    for at, step in enumerate(recording.steps[:prefix]):
        if isinstance(step, Sync):
            synced[step.inode] = at
    changes = [(at, step) for at, step in enumerate(recording.steps[:prefix]) if isinstance(step, Data | Entry)]
    open_ = [at for at, step in changes if at > synced.get(step.inode, -1)]
    fates = [(WHOLE, ABSENT, TORN, ZEROS) if isinstance(recording.steps[at], Data) else (WHOLE, ABSENT) for at in open_]
    for chosen in _choices(fates, most=most, rng=random.Random(f"{seed}/{prefix}")):
        yield _build(recording, [(step, dict(zip(open_, chosen, strict=True)).get(at, WHOLE)) for at, step in changes])


def _choices(fates: Sequence[tuple[str, ...]], *, most: int, rng: random.Random) -> Iterator[tuple[str, ...]]:
    num_all = 1
    for each in fates:
        num_all *= len(each)
    if num_all <= most:
        yield from itertools.product(*fates)
        return
    # Those with one thing missing, or one alone, are the likeliest to tell; chance takes the rest.
    yield tuple(WHOLE for _ in fates)
    yield tuple(ABSENT for _ in fates)
    for at, each in enumerate(fates):
        for fate in each[1:]:
            yield tuple(fate if at == other else WHOLE for other in range(len(fates)))
        yield tuple(WHOLE if at == other else ABSENT for other in range(len(fates)))
    for _ in range(most):
        yield tuple(rng.choice(each) for each in fates)


def _build(recording: Recording, changes: list[tuple[Step, str]]) -> Disk:
    files: dict[int, bytearray] = {}
    entries: dict[int, dict[str, int]] = {ROOT: {}}
    for step, fate in changes:
        if fate == ABSENT:
            continue
        if isinstance(step, Data):
            data = {TORN: step.data[: len(step.data) // 2], ZEROS: bytes(len(step.data))}.get(fate, step.data)
            content = files.setdefault(step.inode, bytearray())
            content.extend(bytes(max(0, step.offset + len(data) - len(content))))
            content[step.offset : step.offset + len(data)] = data
        elif isinstance(step, Entry):
            for name, inode in step.names:
                names = entries.setdefault(step.inode, {})
                if inode is None:
                    names.pop(name, None)
                else:
                    names[name] = inode

    found: list[tuple[str, bytes | None]] = []

    def walk(inode: int, path: str) -> None:
        for name, child in sorted(entries.get(inode, {}).items()):
            if child in recording.directories:
                found.append((f"{path}{name}", None))
                walk(child, f"{path}{name}/")
            else:
                found.append((f"{path}{name}", bytes(files.get(child, b""))))

    walk(ROOT, "")
    return tuple(found)


class _laid_out:  # noqa: N801
    """The disk as a real directory, while the block runs."""

    def __init__(self, disk: Disk, scratch: Path) -> None:
        self._disk, self._path = disk, scratch / "disk"

    def __enter__(self) -> Path:
        self._path.mkdir()
        for name, data in self._disk:
            path = self._path / name
            if data is None:
                path.mkdir()
            else:
                path.write_bytes(data)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path)


def _digest(disk: Disk) -> bytes:
    value = hashlib.blake2b(digest_size=16)
    for name, data in disk:
        value.update(f"{name}\0{-1 if data is None else len(data)}\0".encode())
        value.update(data or b"")
    return value.digest()


def _histories(*, is_long: bool) -> list[History]:
    shapes = [Shape(ranks=2, files=1, num_bytes=300)]
    if is_long:
        shapes += [Shape(num_bytes=(1 << 20) + 9, chunk_bytes=1 << 18), Shape(ranks=4, files=2, num_bytes=300)]
    found = [
        History(name=f"saves-{shape}", act=partial(_saves, shape=shape), check=partial(_check_saves, shape=shape))
        for shape in shapes
    ]
    return [*found, History(name="claims", act=_claims, check=_check_claims)]


def _saves(place: Path, *, shape: Shape) -> None:
    """Three saves with retention behind them, in two attempts."""
    for each in (operations.ident(10), operations.ident(20), operations.ident(15, 1)):
        if each.attempt == 1:
            store.fence(place, 1)
            store.sweep(place)
        say_mark(f"begin {each}")
        save(place, each, shape)
        say_mark(f"durable {each}")
        store.prune(place, newest(1), verified=[each], resumed_from=None)


def _check_saves(place: Path, marks: Sequence[str], *, shape: Shape) -> None:
    begun = [CheckpointId.parse(mark.split()[1]) for mark in marks if mark.startswith("begin")]
    durable = [CheckpointId.parse(mark.split()[1]) for mark in marks if mark.startswith("durable")]
    must_load(place, [durable[-1] if durable else None, *begun[len(durable) :]], shape)


def _claims(place: Path) -> None:
    paths = RunPaths(place)
    for each in paths.all():
        each.mkdir()
    fsync_dir(place)
    for number in range(3):
        say_mark("begin")
        operations.claim(paths, f"7{number}")
        say_mark("durable")


def _check_claims(place: Path, marks: Sequence[str]) -> None:
    paths = RunPaths(place)
    names = sorted(path.name for path in paths.attempts.glob("[0-9]*")) if paths.attempts.is_dir() else []
    found = read_attempts(paths) if paths.attempts.is_dir() else []
    hold(len(found) == len(names), "a claim is there in part", names, found)
    hold(len(found) >= marks.count("durable"), "a claim that was reported is lost", names)
    hold([each.job_id for each in found] == [f"7{number}" for number in range(len(found))], "other claims", found)
