"""Real gloo ranks in processes of their own, which run what a test sends them."""

import multiprocessing
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import torch.distributed as dist

from resilient_launch.checkpoint.torch_board import StoreBoard


@dataclass(frozen=True)
class Rank:
    """What a function that runs in a rank gets to work with."""

    rank: int
    world_size: int
    store: dist.TCPStore

    def board(self, name: str) -> StoreBoard:
        return StoreBoard(self.store, name)


class Ranks:
    """``world_size`` processes; ``run`` calls one function in all of them and returns what each returned."""

    def __init__(self, world_size: int) -> None:
        # Kept here, so that it outlives any rank.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = multiprocessing.get_context("spawn")
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, world_size, self.store.port, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def run(self, act: Callable[..., Any], *arguments: Any) -> list[Any]:
        """One result per rank: the value, the exception that it raised, or None for a rank that is dead."""
        for pipe in self.pipes:
            pipe.send((act, arguments))
        results = []
        for rank, pipe in enumerate(self.pipes):
            try:
                assert pipe.poll(120), f"rank {rank} is silent"
                results.append(pipe.recv())
            except EOFError:
                results.append(None)
        return results

    def values(self, act: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``run``, where an exception in any rank is the test's failure."""
        results = self.run(act, *arguments)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve(rank: int, world_size: int, port: int, pipe: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=world_size)
    me = Rank(rank, world_size, store)
    while True:
        act, arguments = pipe.recv()
        try:
            pipe.send(act(me, *arguments))
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send(error)
