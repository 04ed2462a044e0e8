"""Where there is no atomic rename: a checkpoint goes to a plain mount and comes back, and its manifest commits it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from resilient_launch.checkpoint.store.objects import ObjectStore
from resilient_launch.core.ids import CheckpointId
from tests.faults.campaigns.operations import ident, next_start
from tests.faults.campaigns.states import Shape, must_load, save, tree
from tests.faults.campaigns.tally import hold
from tests.faults.campaigns.tracing import DONE, RAISED, Ended


@dataclass(frozen=True, kw_only=True)
class Push:
    """Step 20 goes to a store that has step 10."""

    shape: Shape = field(default_factory=Shape)
    name: str = "push"

    def prepare(self, place: Path) -> None:
        place.mkdir()
        (place / "here").mkdir()
        save(place / "here", ident(10), self.shape)
        save(place / "here", ident(20), self.shape)
        _store(place).push(place / "here" / str(ident(10)))

    def act(self, place: Path) -> None:
        _store(place).push(place / "here" / str(ident(20)))

    def check(self, place: Path, ended: Ended) -> None:
        hold(ended.code != RAISED, "the push ended with an error that is none of ours", ended.text)
        allowed = [20] if ended.code == DONE else [10, 20] if ended.code is None else [10]
        # A commit that was killed half-way is seen to be none; an error takes its half back.
        _must_come(place, "first", allowed, self.shape, may_condemn=ended.code is None)
        if ended.code is not None and ended.code != DONE:
            hold(str(place) in ended.text and "\ntry: " in ended.text, "the error says nothing that helps", ended.text)
        self.act(place)
        _must_come(place, "second", [20], self.shape)
        names = {path.name for path in (place / "there" / str(ident(20))).iterdir()}
        hold(names == {*self.shape.content(ident(20)), "MANIFEST.json"}, "litter outlives the next push", names)
        must_load(place / "here", [ident(20)], self.shape)


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Step 20 comes from a store into a directory that has step 10."""

    shape: Shape = field(default_factory=Shape)
    name: str = "pull"

    def prepare(self, place: Path) -> None:
        place.mkdir()
        for name in ("here", "origin"):
            (place / name).mkdir()
            save(place / name, ident(10), self.shape)
        save(place / "origin", ident(20), self.shape)
        for step in (10, 20):
            _store(place).push(place / "origin" / str(ident(step)))

    def act(self, place: Path) -> None:
        _store(place).pull(place / "here")

    def check(self, place: Path, ended: Ended) -> None:
        hold(ended.code != RAISED, "the pull ended with an error that is none of ours", ended.text)
        allowed = [ident(20)] if ended.code == DONE else [ident(10), ident(20)] if ended.code is None else [ident(10)]
        if must_load(place / "here", allowed, self.shape) == ident(10):
            hold(ended.code is None or str(place) in ended.text, "the error names no path", ended.text)
            self.act(place)
        must_load(place / "here", [ident(20)], self.shape)
        _must_come(place, "again", [20], self.shape)
        next_start(place / "here", self.shape)


def operations() -> list[Push | Pull]:
    shape = Shape(ranks=2, num_bytes=3000, chunk_bytes=1000)
    return [Push(shape=shape), Pull(shape=shape)]


def _store(place: Path) -> ObjectStore:
    return ObjectStore.at(f"file://{place / 'there'}")


def _must_come(place: Path, name: str, steps: list[int], shape: Shape, *, may_condemn: bool = False) -> None:
    """What the store gives is whole, and of one of these steps; unless ``may_condemn`` nothing in it is damaged."""
    pulled = _store(place).pull(place / name)
    found: CheckpointId = pulled.manifest.id
    hold(found.step in steps, f"pulled {found}", pulled.damaged, tree(place / "there"))
    hold(may_condemn or not pulled.damaged, "the store has something damaged", pulled.damaged)
    must_load(place / name, [found], shape)
