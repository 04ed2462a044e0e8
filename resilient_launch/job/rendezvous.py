"""Where the node agents of a gang meet before each worker group: a counter for each round in their own store.

Slurm admits all nodes of an attempt together and none joins later, so the gang is known: a node's place in it is its
place in the allocation, every time, and nobody waits longer than the slowest takes.
"""

from __future__ import annotations

import time

from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

POLL_S = 0.02


class GangRendezvous(RendezvousHandler):
    """One node's part. ``store`` is a connection of its own; ``address`` is where this node reaches the first one.

    Every round's workers get a new store, on the first node: in one that is older, workers of a restarted group would
    meet the addresses of dead ones.
    """

    def __init__(
        self, store: Store, *, node_index: int, num_nodes: int, address: str, run_id: str, timeout_s: float
    ) -> None:
        self._store, self._node_index, self._num_nodes = store, node_index, num_nodes
        self._address, self._run_id, self._timeout_s = address, run_id, timeout_s
        self._server: TCPStore | None = None
        self.round = 0
        """Number of the newest round that this node joined, from 1 on; the same on every node."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and wait for all nodes. Raises RendezvousClosedError, RendezvousTimeoutError."""
        self.round += 1
        self._store.add(self._joined(self.round), 1)
        deadline = time.monotonic() + self._timeout_s
        while self._store.add(self._joined(self.round), 0) < self._num_nodes:
            if self.is_closed():
                raise RendezvousClosedError
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"not all {self._num_nodes} nodes came within {self._timeout_s:.0f} s")
            time.sleep(POLL_S)
        own = PrefixStore(f"round/{self.round}", self._store)
        if self._node_index == 0:
            self._server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
            own.set("port", str(self._server.port))
        master = RendezvousStoreInfo(self._address, int(own.get("port")))
        return RendezvousInfo(own, self._node_index, self._num_nodes, master)

    def num_nodes_waiting(self) -> int:
        """How many nodes have joined the next round: theirs was the failure, and this node has to come too."""
        return int(self._store.add(self._joined(self.round + 1), 0))

    def finish(self) -> None:
        """This node's workers of the round have all done their part."""
        self._store.add(self._finished(self.round), 1)

    def all_finished(self) -> bool:
        """Whether every node's have."""
        return self._store.add(self._finished(self.round), 0) >= self._num_nodes

    def is_closed(self) -> bool:
        return bool(self._store.check(["rendezvous/closed"]))

    def set_closed(self) -> None:
        """No further round: whoever waits for one is told so."""
        self._store.set("rendezvous/closed", "")

    def shutdown(self) -> bool:
        self.set_closed()
        return True

    def get_backend(self) -> str:
        return "rlaunch"

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """Rank 0 finds its store served already."""
        return True

    def _joined(self, number: int) -> str:
        return f"rendezvous/{number}/joined"

    def _finished(self, number: int) -> str:
        return f"rendezvous/{number}/finished"
