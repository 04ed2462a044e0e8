"""The operations that are struck: a save, a retention pass, a load, a claim; and what must hold afterwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from resilient_launch.checkpoint import store
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import attempt as attempts
from resilient_launch.policy.retention import newest
from tests.faults.campaigns.states import Shape, loaded, must_load, save, tree
from tests.faults.campaigns.tally import hold
from tests.faults.campaigns.tracing import DONE, RAISED, Ended

NOTHING: CheckpointId | None = None

_IS_LOST = re.compile(
    r"\b(write|pwrite64|fsync|fdatasync|ftruncate)\(.*/(?:\.tmp-)?step-.*= -1 (?!EINTR).*\(INJECTED\)"
)
"""A failure of what makes a checkpoint durable; one that a signal caused is simply tried again."""


def ident(step: int, attempt: int = 0) -> CheckpointId:
    return CheckpointId(attempt=attempt, restart=0, step=step)


class Operation(Protocol):
    """One operation in a directory of its own, ``place``."""

    @property
    def name(self) -> str: ...
    def prepare(self, place: Path) -> None:
        """What is there before."""

    def act(self, place: Path) -> None:
        """What is struck."""

    def check(self, place: Path, ended: Ended) -> None:
        """Raises BrokenError when a promise was broken; the next start is part of it."""


@dataclass(frozen=True, kw_only=True)
class Save:
    """A save of step 20, beside a sound step 10 or as the very first one."""

    shape: Shape = field(default_factory=Shape)
    is_first: bool = False

    @property
    def name(self) -> str:
        return f"{'first-' if self.is_first else ''}save-{self.shape}"

    def prepare(self, place: Path) -> None:
        place.mkdir()
        if not self.is_first:
            save(place, ident(10), self.shape)

    def act(self, place: Path) -> None:
        save(place, ident(20), self.shape)

    def check(self, place: Path, ended: Ended) -> None:
        old = NOTHING if self.is_first else ident(10)
        hold(ended.code != RAISED, "the save ended with an error that is none of ours", ended.text)
        allowed = [old, ident(20)] if ended.code is None else [ident(20)] if ended.code == DONE else [old]
        must_load(place, allowed, self.shape)
        if ended.code == DONE:
            must_be_durable(ended.trace)
        if ended.code is not None and ended.code != DONE:
            hold(str(place) in ended.text and "\ntry: " in ended.text, "the error says nothing that helps", ended.text)
            left = [path.name for path in place.iterdir() if path.name.startswith(".")]
            hold(not left or ended.num_struck > 1, "a save that failed keeps room on the disk", left)
            save(place, ident(30), self.shape)
            must_load(place, [ident(30)], self.shape)
        next_start(place, self.shape)


@dataclass(frozen=True, kw_only=True)
class Prune:
    """A retention pass over five checkpoints of two lives, which keeps two and the one resumed from."""

    shape: Shape = field(default_factory=Shape)
    name: str = "retention"

    everything = (ident(10), ident(20), ident(30), ident(20, 1), ident(30, 1))
    kept = (ident(20), ident(20, 1), ident(30, 1))

    def prepare(self, place: Path) -> None:
        place.mkdir()
        for each in self.everything:
            save(place, each, self.shape)

    def act(self, place: Path) -> None:
        store.prune(place, newest(2), verified=[ident(30, 1)], resumed_from=ident(20))

    def check(self, place: Path, ended: Ended) -> None:
        hold(ended.code in (None, DONE) or ended.text, "retention ended without a word")
        hold(ended.code != RAISED, "retention ended with an error that is none of ours", ended.text)
        must_load(place, [ident(30, 1)], self.shape)
        there = store.published(place)
        hold(set(self.kept) <= set(there), "retention removed what it has to keep", there)
        for each in there:
            files = {path.name: path.read_bytes() for path in (place / str(each)).iterdir()}
            files.pop("MANIFEST.json", None)
            files.pop(".begun", None)
            hold(files == self.shape.content(each), f"a part of {each} is visible", sorted(files))
        self.act(place)
        hold(set(store.published(place)) == set(self.kept), "the next pass leaves more", store.published(place))
        next_start(place, self.shape, attempt=2)


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load whose newest checkpoint is whole, or damaged and put aside."""

    shape: Shape = field(default_factory=Shape)
    is_damaged: bool = False

    @property
    def name(self) -> str:
        return "load-damaged" if self.is_damaged else "load"

    def prepare(self, place: Path) -> None:
        place.mkdir()
        save(place, ident(10), self.shape)
        save(place, ident(20), self.shape)
        if self.is_damaged:
            file = place / str(ident(20)) / "rank0-0.bin"
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)

    def act(self, place: Path) -> None:
        found, content, _ = loaded(place)
        assert found is not None and content == self.shape.content(found), found
        assert not (self.is_damaged and found == ident(20))

    def check(self, place: Path, ended: Ended) -> None:
        hold(ended.code != RAISED, "the load gave something else, or an error that is none of ours", ended.text)
        # What the storage refused to say is no damage: nothing sound is put aside.
        must_load(place, [ident(10) if self.is_damaged else ident(20)], self.shape, may_condemn=self.is_damaged)
        next_start(place, self.shape)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim of attempt 2, beside unfinished saves and claims of the older ones."""

    name: str = "claim"
    shape: Shape = field(default_factory=Shape)

    def prepare(self, place: Path) -> None:
        paths = RunPaths(place / "run")
        for each in paths.all():
            each.mkdir(parents=True)
        for number in range(2):
            claim(paths, f"7{number}")
            save(paths.checkpoints, ident(10 + 10 * number, number), self.shape)
            unfinished = paths.checkpoints / f".tmp-{ident(50 + number, number)}-0123456789ab"
            unfinished.mkdir()
            (unfinished / "rank0-0.bin").write_bytes(b"half")

    def act(self, place: Path) -> None:
        claim(RunPaths(place / "run"), "72")

    def check(self, place: Path, ended: Ended) -> None:
        paths = RunPaths(place / "run")
        found = attempts.read_attempts(paths)
        hold(ended.code != RAISED, "the claim ended with an error that is none of ours", ended.text)
        numbers = [each.number for each in found]
        allowed = [[0, 1, 2]] if ended.code == DONE else [[0, 1], [0, 1, 2]]
        hold(numbers in allowed, f"attempts {numbers} after a claim", ended)
        for each in found[2:]:
            hold(each.job_id == "72", "somebody else's attempt", each)
            fenced = [path.name for path in paths.checkpoints.iterdir() if path.name.startswith(".tmp-")]
            hold(not fenced, "an attempt was claimed while older writers can publish", fenced)
            hold(each.checkpoints == (str(ident(10)), str(ident(20, 1))), "checkpoints of the claim", each)
        after = claim(paths, "73")
        hold(after.number == len(numbers), "the next claim", after, tree(paths.attempts))
        lineage = store.Lineage(attempt=after.number, allowed=frozenset(after.checkpoints))
        must_load(paths.checkpoints, [ident(20, 1)], self.shape, lineage)
        next_start(paths.checkpoints, self.shape, attempt=after.number)
        left = [path.name for path in paths.attempts.iterdir() if path.name.startswith(".")]
        hold(not left, "litter of a claim outlives the next one", left)


def must_be_durable(trace: Sequence[str]) -> None:
    """A save was reported: nothing that makes it durable has failed."""
    lies = [line for line in trace if _IS_LOST.search(line)]
    hold(not lies, "the save was reported although its files may not be on the disk", lies)


def claim(paths: RunPaths, job_id: str) -> attempts.Attempt:
    return attempts.claim(
        paths, job_id=job_id, slurm_restart_count=0, nodes=["n1"], addresses=["::1"], port=1, code_version="git:1"
    )


def next_start(place: Path, shape: Shape, attempt: int = 1) -> None:
    """Whatever happened, the next start of the run saves, loads what it saved, and leaves nothing else behind."""
    store.fence(place, attempt)
    store.sweep(place)
    save(place, ident(40, attempt), shape)
    must_load(place, [ident(40, attempt)], shape)
    known = {str(each) for each in store.published(place)} | {"LATEST"}
    strangers = [path.name for path in place.iterdir() if path.name not in known and ".corrupt" not in path.name]
    hold(not strangers, "litter outlives the next start", strangers)


def torch_free(*, is_long: bool) -> Sequence[Operation]:
    """All operations; the long form varies the number of files, ranks and chunks."""
    found: list[Operation] = [
        Save(shape=Shape(ranks=2, files=2)),
        Save(shape=Shape(ranks=1, files=1), is_first=True),
        Prune(),
        Load(),
        Load(is_damaged=True),
        Claim(),
        Save(shape=Shape(ranks=2, files=1, num_bytes=9000, chunk_bytes=4096, is_image=True)),
        Save(shape=Shape(ranks=2, files=1, in_place=True)),
        Prune(shape=Shape(in_place=True), name="retention-in-place"),
    ]
    if is_long:
        megabyte = 1 << 20
        shapes = [Shape(ranks=ranks, files=files) for ranks in (1, 2, 4) for files in (1, 3)]
        shapes += [Shape(ranks=8, files=1, chunk_bytes=512), Shape(ranks=2, num_bytes=0)]
        shapes += [Shape(ranks=2, files=2, num_bytes=megabyte + 70000, chunk_bytes=1 << size) for size in (12, 16, 22)]
        found += [Save(shape=shape) for shape in shapes]
        found.append(Prune(shape=Shape(ranks=2, files=2), name="retention-2x2"))
        found.append(Load(shape=Shape(ranks=2, files=2, chunk_bytes=1000)))
    return found
