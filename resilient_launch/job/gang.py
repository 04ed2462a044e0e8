"""One node's part in its gang: connections to the agents' store, and the agreement of the newest worker group."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore

from resilient_launch.job import agreement
from resilient_launch.job.agreement import Leader, Participant, SaveRequest
from resilient_launch.job.context import Allocation
from resilient_launch.job.page import Page, Reason


class Gang:
    """``tell`` gets, from any thread: "signal" with its name and node, "stop" with the agreed step, "agreed" with the
    step of a requested save, "lost" when the store is gone, "event" with a kind and its fields."""

    def __init__(self, address: str, port: int, allocation: Allocation, *, tell: Callable[[str, Any], None]) -> None:
        self._address, self._port, self._allocation, self._tell = address, port, allocation, tell
        self._restart = 0
        self._group: Store | None = None

    def connect(self) -> Store:
        """Another connection to the agents' store: a blocking wait on a shared one would hold up everybody on it."""
        client = TCPStore(self._address, self._port, is_master=False, wait_for_workers=False)
        return PrefixStore("rlaunch", client)

    def connect_group(self) -> Store:
        """Another connection into the newest worker group's key space."""
        return PrefixStore(f"group/{self._restart}", self.connect())

    def forward_signal(self, store: Store, name: str) -> None:
        """On another node than the first: tell that one of a signal that arrived here. ``store`` is the caller's."""
        try:
            number = store.add("signal/count", 1)
            agreement.post(store, f"signal/{number}", {"name": name, "node": self._allocation.node})
        except (RuntimeError, ConnectionError):
            self._tell("lost", None)

    def read_forwarded(self) -> None:
        """On the first node: signals that reached other nodes only. Blocks until the store is gone."""
        store, number = self.connect(), 1
        with contextlib.suppress(ConnectionError):
            while True:
                message = agreement.wait(store, f"signal/{number}")
                number += 1
                self._tell("signal", (str(message["name"]), str(message["node"])))

    def begin_group(self, restart: int, pages: Sequence[Page]) -> None:
        """Take part in the agreement of a new worker group; on the first node, lead it."""
        self.end_group()
        self._restart = restart
        self._group = self.connect_group()
        Participant(
            self.connect_group(),
            index=self._allocation.node_index,
            pages=pages,
            on_stop=lambda step: self._tell("stop", step),
            on_event=self._on_agreement,
            on_lost=lambda: self._tell("lost", None),
        ).start()
        if self._allocation.is_first:
            Leader(self.connect_group(), num_participants=self._allocation.num_nodes, pages=pages).start()

    def end_group(self) -> None:
        """The worker group is over, for every node."""
        if self._group is not None:
            agreement.finish(self._group)
        self._group = None

    def ask(self, wish: SaveRequest) -> bool:
        """Ask for an agreed save; whether there is a worker group to ask."""
        if self._group is None:
            return False
        try:
            agreement.request(self._group, wish)
        except ConnectionError:
            self._tell("lost", None)
        return True

    def _on_agreement(self, status: str, number: int, step: int, reason: str) -> None:
        self._tell("event", ("agreement", {"status": status, "round": number, "step": step, "reason": reason}))
        if (status, reason) == ("final", Reason.REQUEST.name.lower()) and self._allocation.is_first:
            self._tell("agreed", step)
