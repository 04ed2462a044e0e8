"""Agreement between real participants over a real TCP store; ranks are threads that step through real pages."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from torch.distributed import PrefixStore, Store, TCPStore

from resilient_launch.job.agreement import Leader, Participant, SaveRequest, finish, request
from resilient_launch.job.page import Action, Page, Reason


@dataclass
class Rank(threading.Thread):
    """Steps as fast as it is told to, in step with its peers, and notes where it was told to act."""

    page: Page
    barrier: threading.Barrier
    until: int
    step_s: float = 0.0
    acted: list[tuple[int, int]] = field(default_factory=list)

    def __hash__(self) -> int:
        return id(self)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def run(self) -> None:
        page = self.page
        for step in range(self.until):
            page.step = step
            page.step_s = self.step_s
            if page.hold_round != page.done_round:
                while page.word < page.hold_round and 0 <= page.hold <= step:
                    time.sleep(0.0005)
                if page.word >= page.hold_round and 0 <= page.hold <= step:
                    page.done_round = page.word
                    self.acted.append((step, page.action))
                    if page.action == Action.SAVE_AND_STOP:
                        return
            if self.step_s:
                time.sleep(self.step_s)
            try:
                self.barrier.wait(30)
            except threading.BrokenBarrierError:
                return


class Gang:
    def __init__(self, tmp: Path, num_nodes: int, ranks_per_node: int) -> None:
        self.server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.pages = [
            [Page.create(tmp / f"{node}.{local}") for local in range(ranks_per_node)] for node in range(num_nodes)
        ]
        self.stops: list[int | None] = []
        self.events: list[tuple[str, int, int, str]] = []
        self.participants = [
            Participant(
                self.connect(),
                index=node,
                pages=pages,
                on_stop=self.stops.append,
                on_event=lambda *event: self.events.append(event),
                on_lost=lambda: None,
            )
            for node, pages in enumerate(self.pages)
        ]
        self.leader = Leader(self.connect(), num_participants=num_nodes, pages=self.pages[0])
        self.threads: list[threading.Thread] = [*self.participants, self.leader]
        for thread in self.threads:
            thread.start()

    def connect(self) -> Store:
        client = TCPStore("localhost", self.server.port, is_master=False, wait_for_workers=False)
        return PrefixStore("test", client)

    def ranks(self, until: int, step_s: float) -> list[Rank]:
        pages = [page for node in self.pages for page in node]
        barrier = threading.Barrier(len(pages))
        ranks = [Rank(page, barrier, until, step_s) for page in pages]
        for rank in ranks:
            rank.start()
        return ranks

    def close(self) -> None:
        finish(self.connect())
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    made = Gang(tmp_path, num_nodes=3, ranks_per_node=2)
    yield made
    made.close()


def wait_for(condition: object, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("step_s", [0.0, 0.005])
def test_every_rank_acts_at_the_same_step_whoever_asks(gang: Gang, step_s: float) -> None:
    ranks = gang.ranks(until=1_000_000 if step_s == 0 else 20_000, step_s=step_s)
    wait_for(lambda: ranks[0].page.step > 20)
    request(gang.connect(), SaveRequest(action=Action.SAVE, reason=Reason.TIME))
    wait_for(lambda: all(rank.acted for rank in ranks))
    # The last node asks, as one does that alone heard a signal.
    request(gang.connect(), SaveRequest(action=Action.SAVE_AND_STOP, reason=Reason.NOTICE))
    for rank in ranks:
        rank.join(60)
        assert not rank.is_alive()
    assert len({tuple(rank.acted) for rank in ranks}) == 1
    assert [action for _, action in ranks[0].acted] == [Action.SAVE, Action.SAVE_AND_STOP]
    wait_for(lambda: len(gang.stops) == 3)
    assert set(gang.stops) == {ranks[0].acted[1][0]}


def test_requests_in_a_burst_never_make_a_rank_miss_one(gang: Gang) -> None:
    ranks = gang.ranks(until=100_000, step_s=0.002)
    store = gang.connect()
    for _ in range(5):
        request(store, SaveRequest(action=Action.SAVE, reason=Reason.REQUEST))
    request(store, SaveRequest(action=Action.SAVE_AND_STOP, reason=Reason.NOTICE))
    for rank in ranks:
        rank.join(60)
        assert not rank.is_alive()
    assert len({tuple(rank.acted) for rank in ranks}) == 1
    assert ranks[0].acted[-1][1] == Action.SAVE_AND_STOP


def test_a_stop_before_anyone_began_needs_no_save(gang: Gang) -> None:
    request(gang.connect(), SaveRequest(action=Action.SAVE_AND_STOP, reason=Reason.NOTICE))
    wait_for(lambda: len(gang.stops) == 3)
    assert set(gang.stops) == {None}


def test_a_save_before_anyone_began_is_dropped_and_holds_nobody(gang: Gang) -> None:
    request(gang.connect(), SaveRequest(action=Action.SAVE, reason=Reason.TIME))
    wait_for(lambda: len(gang.events) == 3)
    assert {event[0] for event in gang.events} == {"withdrawn"}
    assert all(page.hold == -1 for node in gang.pages for page in node)


def test_a_lost_store_is_reported(tmp_path: Path) -> None:
    lost = threading.Event()
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("localhost", server.port, is_master=False, wait_for_workers=False)
    participant = Participant(
        client,
        index=0,
        pages=[Page.create(tmp_path / "page")],
        on_stop=lambda step: None,
        on_event=lambda *event: None,
        on_lost=lost.set,
    )
    participant.start()
    del server
    assert lost.wait(60)
    participant.join(30)
