"""Ranks with torch, forked from one process that has it imported, and the store over which they talk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from resilient_launch.core.errors import RlaunchError
from tests.faults.campaigns.tracing import DONE, RAISED, REFUSED, wait_for_end

if TYPE_CHECKING:
    from resilient_launch.checkpoint.torch_board import StoreBoard
    from resilient_launch.checkpoint.train_state import TrainState

WORLD_SIZE = 2
SERVER = (
    "import sys; from torch.distributed import TCPStore; store = TCPStore('127.0.0.1', 0, is_master=True, "
    "wait_for_workers=False); print(store.port, flush=True); sys.stdin.read()"
)


def make_state(step: int, rank: int) -> TrainState:
    """A state as it is after ``step`` steps: the same each time it is made, on every rank but for the generators."""
    import torch

    from resilient_launch.checkpoint.rng import seed_all
    from resilient_launch.checkpoint.train_state import TrainState

    seed_all(step, rank)
    generator = torch.Generator().manual_seed(step)
    model = torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
        optimizer.state[parameter]["momentum_buffer"] = torch.randn(parameter.shape, generator=generator)
    state = TrainState(model=model, optimizer=optimizer)
    while state.step < step:
        state.advance()
    return state


def must_equal(state: TrainState, rank: int, step: int) -> None:
    """``state`` is what make_state says of ``step``."""
    own, theirs = (each.capture(rank, WORLD_SIZE).tensors for each in (state, make_state(step, rank)))
    assert own.keys() == theirs.keys() and all(own[key].equal(theirs[key]) for key in own), "another state"


def board_of(port: int, prefix: str) -> StoreBoard:
    import torch

    from resilient_launch.checkpoint.torch_board import StoreBoard

    return StoreBoard(torch.distributed.TCPStore("127.0.0.1", port, is_master=False), prefix)


def warm_up(place: Path) -> None:
    """What the first save alone does, such as imports: ranks are forked from here, and it is no part of theirs."""
    import torch

    from resilient_launch.checkpoint.checkpointer import Checkpointer

    torch.set_num_threads(1)
    Checkpointer(place).save(make_state(1, 0))
    Checkpointer(place, attempt=1).restore(make_state(2, 0))


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "MANIFEST.json"}


def fork(act: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = RAISED
        try:
            act()
            code = DONE
        except RlaunchError:
            code = REFUSED
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


def code_of(pid: int) -> int:
    try:
        wait_for_end(pid)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


@contextlib.contextmanager
def word_store() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
