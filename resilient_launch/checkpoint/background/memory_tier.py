"""Going on from the nodes' memory: all ranks agree on one snapshot and read it, or all of them read shared storage.

Nothing is applied to the training before every rank has read and verified all that it needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.background.client import WriterGoneError
from resilient_launch.checkpoint.background.peers import OpenSnapshot, OwnMemory, PeerMemory, Server, Source
from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.background.shelf import Label
from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.checkpoint.merging import merge_parts
from resilient_launch.checkpoint.store import DamagedError, FileEntry, Manifest, OpenCheckpoint, Round
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.snapshots import Holding, Mark, pick

T = TypeVar("T")
Held = tuple[Label, Arena]


@dataclass(frozen=True, kw_only=True)
class Here:
    """What this worker group is: its snapshots are of the same run, attempt, code and ranks, and of an older group."""

    run_id: str
    attempt: int
    restart: int
    code_version: str
    rank: int
    world_size: int

    def why_not(self, label: Label) -> str:
        """Why a snapshot is nothing to go on from; empty where it may be."""
        ident, facts = label.mark.id, label.facts
        if (facts.run_id, ident.attempt) != (self.run_id, self.attempt) or ident.restart >= self.restart:
            return f"{ident} is not of an earlier worker group of this attempt"
        if (label.job["rank"], label.job["world_size"]) != (self.rank, self.world_size):
            return f"{ident} is of rank {label.job['rank']} of {label.job['world_size']}"
        if facts.code_version != self.code_version:
            return f"{ident} is of other code"
        return ""


@dataclass(frozen=True, kw_only=True)
class FromMemory(Generic[T]):
    """``manifest`` and ``value`` of the snapshot that was read, None of both where there was none to use, and why."""

    why: str
    manifest: Manifest | None = None
    value: T | None = None


def read_newest_snapshot(
    background: Background,
    here: Here,
    round_: Round,
    *,
    newest_shared: Callable[[], CheckpointId | None],
    passed_over: Collection[str],
    read: Callable[[OpenCheckpoint, Index], T],
) -> FromMemory[T]:
    """Read the newest snapshot that every rank has, together with the round's other ranks.

    ``newest_shared`` is asked on rank 0 alone. Raises CheckpointError where the ranks can't agree, FencedError where a
    newer attempt has taken over; it is the caller's to tell the others (``Round.failing``).
    """
    held, why_none = _look(background, here)
    words = round_.gather("held", {"marks": [_mark_to_json(mark) for mark in held], "why": why_none})
    plan = None
    if words is not None:
        holdings = [Holding(marks=[_mark(each) for each in word["marks"]], why_none=word["why"]) for word in words]
        # The storage need not be asked where there is nothing to compare with it.
        shared = newest_shared() if all(holding.marks for holding in holdings) else None
        picked = pick(holdings, shared=shared, passed_over=passed_over)
        plan = {"marks": [_mark_to_json(mark) for mark in picked.marks], "why": picked.why}
    plan = round_.share("plan", plan)
    whys = [plan["why"]]
    for number, each in enumerate(plan["marks"]):
        mark = _mark(each)
        done = _try(held[mark], background.addresses, round_, number, read)
        if isinstance(done, str):
            whys.append(f"{mark.id} in memory can't be used: {done}")
            continue
        manifest, value = done
        return FromMemory(why="; ".join([*whys[1:], whys[0]]), manifest=manifest, value=value)
    return FromMemory(why="; ".join(whys[1:] or whys))


def _look(background: Background, here: Here) -> tuple[dict[Mark, Held], str]:
    try:
        kept = background.kept()
    except (WriterGoneError, OSError) as error:
        return {}, str(error)
    whys = [here.why_not(label) for label, _ in kept]
    found = {each[0].mark: each for each, why in zip(kept, whys, strict=True) if not why}
    return found, "" if found else next(iter(whys), "the crash came before one was whole")


def _try(
    held: Held, addresses: Sequence[str], round_: Round, number: int, read: Callable[[OpenCheckpoint, Index], T]
) -> tuple[Manifest, T] | str:
    """One candidate; the reason, the same on every rank, where it is not to be had."""
    label, arena = held
    with contextlib.ExitStack() as stack:
        try:
            _verify(label, arena)
            server = Server(arena, label.entry.size, addresses)
            stack.callback(server.close)
            word = {
                "entry": label.entry.to_json(),
                "part": label.job["part"],
                "server": [server.addresses, server.port, server.token],
            }
        except Exception as error:
            word = {"error": _text(error)}
        words = round_.gather(f"whole{number}", word)
        whole = round_.share(f"whole{number}/all", _merge(words, label) if words is not None else None)
        if "error" in whole:
            return str(whole["error"])
        value: T | None = None
        try:
            manifest = label.manifest([FileEntry.from_json(record) for record in whole["entries"]])
            sources: list[Source] = [
                OwnMemory(arena) if rank == round_.rank else PeerMemory(*server)
                for rank, server in enumerate(whole["servers"])
            ]
            with OpenSnapshot(manifest, sources) as snapshot:
                value = read(snapshot, Index.parse(whole["index"].encode()))
            problem = ""
        except Exception as error:
            problem = _text(error)
        words = round_.gather(f"read{number}", problem)
        outcome = round_.share(f"read{number}/all", _first(words) if words is not None else None)
        # Until here others were reading from this rank.
        if outcome:
            return str(outcome)
        assert value is not None
        return manifest, value


def _verify(label: Label, arena: Arena) -> None:
    """Raises DamagedError unless the arena holds what was copied into it."""
    if label.entry.size > arena.num_bytes:
        raise DamagedError("the snapshot is longer than its memory")
    manifest = label.manifest([label.entry])
    with OpenSnapshot(manifest, [OwnMemory(arena)]) as opened:
        opened.verify_share()


def _merge(words: Sequence[dict[str, Any]], label: Label) -> dict[str, Any]:
    """What rank 0 tells all of them: the whole index and where each part is; or which rank's part is missing."""
    if missing := _first([word.get("error", "") for word in words]):
        return {"error": missing}
    try:
        index = merge_parts([word["part"] for word in words], label.job["trees"])[INDEX_NAME]
    except CheckpointError as error:
        return {"error": _text(error)}
    return {
        "index": index.decode(),
        "entries": [word["entry"] for word in words],
        "servers": [word["server"] for word in words],
    }


def _first(problems: Sequence[str]) -> str:
    return next((f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem), "")


def _text(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return f"{error.what}, {error.why}" if error.why else error.what
    return f"{type(error).__name__}: {error}"


def _mark(record: Sequence[Any]) -> Mark:
    name, number = record
    ident = CheckpointId.parse(name)
    if ident is None:
        raise DamagedError(f"no name of a checkpoint: {name!r}")
    return Mark(ident, int(number))


def _mark_to_json(mark: Mark) -> list[Any]:
    return [str(mark.id), mark.number]
