"""Ranks that ask together whether the end is near get one answer, and leave nothing behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any, cast

import pytest
from torch.distributed import PrefixStore, TCPStore

from resilient_launch.job.polling import Polling

WORLD_SIZE = 3


@dataclass(frozen=True)
class Place:
    """What polling needs to know of a rank."""

    rank: int
    port: int
    world_size: int = WORLD_SIZE

    def connect(self) -> PrefixStore:
        return PrefixStore("g", TCPStore("127.0.0.1", self.port, is_master=False, wait_for_workers=False))


@pytest.mark.parametrize("hears", range(WORLD_SIZE))
def test_all_ranks_get_the_same_answers_and_the_store_does_not_grow(hears: int) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    before = server.num_keys()
    # The collective that each batch goes through.
    meet = Barrier(WORLD_SIZE)

    def ask(rank: int) -> list[bool]:
        polling = Polling(cast("Any", Place(rank, server.port)))
        answers = []
        for number in range(100):
            meet.wait(60)
            answers.append(polling.answer(number >= 50 and rank == hears, together=True))
        return answers

    with ThreadPoolExecutor(WORLD_SIZE) as pool:
        answers = list(pool.map(ask, range(WORLD_SIZE)))
    assert answers[0] == answers[1] == answers[2]
    assert not any(answers[0][:50]) and answers[0][-1]
    # One for the word that somebody has heard of it, where that is not the first rank.
    assert server.num_keys() <= before + 1
