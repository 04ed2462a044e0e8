"""Whether the end is near, asked from long phases between steps: by each rank for itself, or by all together."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

    from resilient_launch.job.workplace import Workplace

WORD_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the first one's word; a rank that hangs is found by its node's agent long before."""

_WANTED = "poll/wanted"


class Polling:
    """``has_said_stop``: the answer was yes at least once."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self._num_asked = 0
        self._store: Store | None = None
        self.has_said_stop = False

    def answer(self, wanted: bool, *, together: bool) -> bool:
        """``wanted``; where asked ``together``, whether any rank has wanted it, which is the same on every rank."""
        if together and self._workplace.world_size > 1:
            wanted = self._any_ranks(wanted)
        self.has_said_stop |= wanted
        return wanted

    def _any_ranks(self, wanted: bool) -> bool:
        if self._store is None:
            self._store = self._workplace.connect()
        self._num_asked += 1
        key = f"poll/{self._num_asked}"
        if self._workplace.rank == 0:
            wanted = wanted or self._store.check([_WANTED])
            self._store.set(key, "stop" if wanted else "go on")
            return wanted
        if wanted:
            # The first rank may never hear of it by itself, and sees this at its next question at the latest.
            self._store.set(_WANTED, "1")
        self._store.wait([key], WORD_TIMEOUT)
        is_stop = bytes(self._store.get(key)) == b"stop"
        if self._store.add(f"{key}/read", 1) == self._workplace.world_size - 1:
            # The last to read it: the store does not grow with the number of batches.
            self._store.delete_key(key)
            self._store.delete_key(f"{key}/read")
        return is_stop
