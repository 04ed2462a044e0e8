"""What a save or a restore comes to, and a save that is still under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from resilient_launch.checkpoint.store import Manifest, Verdict
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.ids import CheckpointId

if TYPE_CHECKING:
    from resilient_launch.checkpoint.train_state import Capture


@dataclass(frozen=True, kw_only=True)
class SaveReport:
    """One finished save. ``staged_s`` is how long training was held up, ``durable_s`` how long until it was safe.

    A save in the background also tells how long of ``staged_s`` it ``waited_s`` for the one before it, and how long
    writing, from the end of the copy on, and committing took.
    """

    id: CheckpointId
    num_bytes: int
    staged_s: float
    durable_s: float
    waited_s: float = 0.0
    write_s: float = 0.0
    commit_s: float = 0.0
    pruned: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Written:
    """A published save: seconds from the end of the copy to all files being durable, and from there to the commit."""

    num_bytes: int
    write_s: float
    commit_s: float


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A save whose state is collected; ``started`` is on the monotonic clock."""

    id: CheckpointId
    started: float
    waited_s: float
    round_name: str
    capture: Capture

    def report(self, written: Written, staged_s: float) -> SaveReport:
        """What it comes to, now that it is durable."""
        return SaveReport(
            id=self.id,
            num_bytes=written.num_bytes,
            staged_s=staged_s,
            durable_s=time.monotonic() - self.started,
            waited_s=self.waited_s,
            write_s=written.write_s,
            commit_s=written.commit_s,
        )


class Saving:
    """A save that was begun; training goes on meanwhile."""

    def __init__(self, ident: CheckpointId, staged_s: float = 0.0) -> None:
        self.id = ident
        self.staged(staged_s)
        self._outcome: SaveReport | CheckpointError | None = None
        self._over = threading.Event()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def staged(self, staged_s: float) -> None:
        """Say that the state is copied, and how long training was held up by it."""
        self.staged_s, self.staged_at = staged_s, time.monotonic()

    def wait(self, timeout_s: float | None = None) -> SaveReport:
        """The report, once it is durable. Raises CheckpointError when it failed, TimeoutError."""
        if not self._over.wait(timeout_s):
            raise TimeoutError(f"checkpoint {self.id} is still being written")
        if isinstance(self._outcome, CheckpointError):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome

    def settle(self, outcome: SaveReport | CheckpointError) -> None:
        """Say how it ended."""
        self._outcome = outcome
        self._over.set()


class Tier(StrEnum):
    """Where a state can be taken from."""

    SHARED = "shared"
    LOCAL = "local"
    """The nodes' memory."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a restore took the state from; ``why`` is empty where memory was no question.

    ``is_durable``: shared storage has that checkpoint too.
    """

    tier: Tier = Tier.SHARED
    why: str = ""
    is_durable: bool = True


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What training goes on from. ``verdicts`` tell, newest first, why newer checkpoints were not chosen."""

    id: CheckpointId
    step: int
    manifest: Manifest
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]


OnEnd = Callable[[Saving, SaveReport | CheckpointError], None]
