"""One save or load as a round of words between ranks: rank 0 shares, every rank reports, anyone may fail it.

Every wait is bounded by the round's deadline and ends early when any rank has failed, so that a full disk on one rank
reaches all of them in about a second and a dead rank costs the deadline and no more.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from resilient_launch.checkpoint.store.board import Board
from resilient_launch.checkpoint.store.errors import (
    DamagedError,
    FencedError,
    ForeignError,
    UnreadableError,
    UnsupportedError,
)
from resilient_launch.core.errors import CheckpointError

_KINDS = (CheckpointError, FencedError, DamagedError, UnreadableError, UnsupportedError, ForeignError)
_BY_NAME = {kind.__name__: kind for kind in _KINDS}
_FIRST_SLICE_S = 0.05
_LONGEST_SLICE_S = 1.0


def error_to_json(error: BaseException, rank: int) -> dict[str, Any]:
    """An error as it is posted. Anything but a CheckpointError keeps its type's name and text."""
    if isinstance(error, CheckpointError):
        kind = type(error).__name__
        fields = {"what": error.what, "why": error.why, "where": error.where, "hint": error.hint}
    else:
        kind = CheckpointError.__name__
        fields = {"what": f"{type(error).__name__}: {error}", "why": "", "where": "", "hint": ""}
    return {"rank": rank, "kind": kind, **fields}


def error_from_json(record: dict[str, Any], *, names_rank: bool = False) -> CheckpointError:
    """The posted error again, naming its rank, unless it does so already."""
    kind = _BY_NAME.get(record["kind"], CheckpointError)
    what = record["what"] if names_rank else f"rank {record['rank']}: {record['what']}"
    return kind(what, why=record["why"], where=record["where"], hint=record["hint"])


class Round:
    """One round, named alike on every rank. ``deadline_s`` counts from its construction."""

    def __init__(
        self, board: Board, name: str, *, rank: int, world_size: int, deadline_s: float, previous: Round | None = None
    ) -> None:
        self.rank, self.world_size, self.name = rank, world_size, name
        self._board = board
        self._limit_s = deadline_s
        self._deadline = time.monotonic() + deadline_s
        self._previous = previous
        self._said: list[str] = []
        self._is_complete = False

    @property
    def is_coordinator(self) -> bool:
        return self.rank == 0

    @property
    def remaining_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def extend(self, extra_s: float) -> None:
        """Wait longer than the coordinator does, so that its word on who is late arrives before ours."""
        self._deadline += extra_s

    def share(self, topic: str, value: Any = None) -> Any:
        """Rank 0 gives ``value`` to everybody; every other rank waits for it and returns it."""
        key = f"{self.name}/{topic}"
        if not self.is_coordinator:
            return self._read(key, "rank 0")
        self._post(key, value)
        self._said.append(key)
        if self._is_complete and self._previous is not None:
            # After the word that the others wait for, as nobody waits for this.
            self._previous._forget()
            self._previous = None
        return value

    def gather(self, topic: str, value: Any) -> list[Any] | None:
        """Every rank reports ``value``; rank 0 returns all of them in rank order, the others None at once."""
        if not self.is_coordinator:
            self._post(f"{self.name}/{topic}/{self.rank}", value)
            return None
        reports = [value]
        for rank in range(1, self.world_size):
            key = f"{self.name}/{topic}/{rank}"
            self._said.append(key)
            reports.append(self._read(key, f"rank {rank}"))
        # All ranks are in this round, so nobody reads the one before any more.
        self._is_complete = True
        return reports

    def fail(self, error: BaseException) -> CheckpointError:
        """Tell every rank, and return the error that this rank should raise: the round's first, naming its rank."""
        # A rank that stumbles over the directory that rank 0 removed after the first failure is not the cause.
        if (first := self._failure()) is not None:
            return first
        record = error_to_json(error, self.rank)
        # Where the board is gone too, the others run into their own deadline.
        with contextlib.suppress(OSError):
            self._board.post(f"{self.name}/failed", json.dumps(record).encode())
        return error_from_json(record)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """Whatever goes wrong here, every rank hears of it at once."""
        try:
            yield
        except CheckpointError as error:
            raise self.fail(error) from error
        except BaseException as error:
            self.fail(error)
            raise

    def _forget(self) -> None:
        if self._previous is not None:
            self._previous._forget()
            self._previous = None
        # Words that nobody reads are no reason to fail.
        with contextlib.suppress(OSError):
            for key in self._said:
                self._board.discard(key)

    def _post(self, key: str, value: Any) -> None:
        try:
            self._board.post(key, json.dumps(value, separators=(",", ":"), allow_nan=False).encode())
        except OSError as error:
            raise _board_gone(error, self.name) from error

    def _read(self, key: str, who: str) -> Any:
        slice_s = _FIRST_SLICE_S
        while True:
            left_s = self.remaining_s
            try:
                return json.loads(self._board.read(key, min(slice_s, left_s)))
            except TimeoutError:
                pass
            except OSError as error:
                raise _board_gone(error, self.name) from error
            if (failure := self._failure()) is not None:
                raise failure
            if left_s <= 0:
                error_ = CheckpointError(
                    f"{who} did not answer",
                    why=f"no word within {self._limit_s:g} s for {self.name}",
                    hint="look for a crashed or hung rank, or allow more time",
                )
                self.fail(error_)
                raise error_
            slice_s = min(2 * slice_s, _LONGEST_SLICE_S)

    def _failure(self) -> CheckpointError | None:
        try:
            return error_from_json(json.loads(self._board.read(f"{self.name}/failed", 0.0)))
        except OSError:
            return None


class Rounds:
    """Starts one round after another and frees the words of the last one. The same sequence on every rank."""

    def __init__(self, board: Board, *, rank: int, world_size: int) -> None:
        self._board, self._rank, self._world_size = board, rank, world_size
        self._last: Round | None = None

    def start(self, name: str, deadline_s: float) -> Round:
        """A new round; ``name`` must be the same on every rank and never used before on this board."""
        self._last = Round(
            self._board,
            name,
            rank=self._rank,
            world_size=self._world_size,
            deadline_s=deadline_s,
            previous=self._last if self._rank == 0 else None,
        )
        return self._last


def _board_gone(error: BaseException, name: str) -> CheckpointError:
    return CheckpointError(
        f"the ranks can't coordinate {name}",
        why=f"the board does not answer: {error}",
        hint="the node that keeps it is gone; the next attempt starts from the last published checkpoint",
    )
