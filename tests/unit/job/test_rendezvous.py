"""A gang's nodes meet before each worker group: threads for nodes, over a store in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousInfo, RendezvousTimeoutError

from resilient_launch.job.rendezvous import GangRendezvous


def _nodes(num_nodes: int, *, timeout_s: float = 60.0) -> list[GangRendezvous]:
    store = HashStore()
    return [
        GangRendezvous(
            store, node_index=index, num_nodes=num_nodes, address="127.0.0.1", run_id="run-0", timeout_s=timeout_s
        )
        for index in range(num_nodes)
    ]


def _meet(nodes: list[GangRendezvous]) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(len(nodes)) as pool:
        # The last node comes first: places do not depend on the order of arrival.
        return list(pool.map(GangRendezvous.next_rendezvous, nodes[::-1]))[::-1]


def test_every_node_has_its_place_and_every_round_a_store_of_its_own() -> None:
    nodes = _nodes(3)
    first, second = _meet(nodes), _meet(nodes)
    for infos in (first, second):
        assert [(info.rank, info.world_size) for info in infos] == [(0, 3), (1, 3), (2, 3)]
        assert len({info.bootstrap_store_info.master_port for info in infos}) == 1  # type: ignore[union-attr]
    assert [node.round for node in nodes] == [2, 2, 2]
    first[0].store.set("word", "of the first round")
    assert not second[1].store.check(["word"])
    master = second[1].bootstrap_store_info
    assert master is not None
    # Rank 0's process is a client of it like every other.
    client = TCPStore(master.master_addr, master.master_port, is_master=False, wait_for_workers=False)
    client.set("who", "a worker")
    assert nodes[0].use_agent_store


def test_a_node_that_waits_for_the_next_round_is_seen_by_the_others() -> None:
    nodes = _nodes(2)
    _meet(nodes)
    assert nodes[0].num_nodes_waiting() == 0
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(nodes[1].next_rendezvous)
        while not nodes[0].num_nodes_waiting():
            assert not early.done()
        nodes[0].next_rendezvous()
        early.result(60)
    assert nodes[0].num_nodes_waiting() == 0


def test_nobody_waits_for_ever() -> None:
    alone, _ = _nodes(2, timeout_s=0.05)
    with pytest.raises(RendezvousTimeoutError, match="not all 2 nodes"):
        alone.next_rendezvous()
    one, other = _nodes(2)
    other.shutdown()
    with pytest.raises(RendezvousClosedError):
        one.next_rendezvous()
