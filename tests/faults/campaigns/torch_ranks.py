"""Two ranks with torch save together, and one of them is killed at each file system call that it makes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from resilient_launch.core.errors import RlaunchError
from tests.faults.campaigns.operations import ident
from tests.faults.campaigns.states import loaded
from tests.faults.campaigns.strikes import memory
from tests.faults.campaigns.tally import Tally, hold
from tests.faults.campaigns.tracing import DONE, RAISED, REFUSED, Call, calls, run, wait_for_end

if TYPE_CHECKING:
    from resilient_launch.checkpoint.checkpointer import Checkpointer
    from resilient_launch.checkpoint.train_state import TrainState

WORLD_SIZE = 2
SAVE_TIMEOUT_S = 20.0
DEAD_PEER_TIMEOUT_S = 1.0
EVERY_LONG, EVERY_SHORT = 1, 9
LEFT_ALONE = 10
"""The survivor of every so many-th kill runs into its deadline; the others are killed too, as a worker group is."""
SERVER = (
    "import sys; from torch.distributed import TCPStore; store = TCPStore('127.0.0.1', 0, is_master=True, "
    "wait_for_workers=False); print(store.port, flush=True); sys.stdin.read()"
)


def torch_ranks(tally: Tally) -> None:
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch, _store() as port:
        # What the first save alone does, such as imports, is no part of one: the ranks are forked from here.
        _warm_up(Path(scratch) / "warm")
        bench = _Bench(Path(scratch), port)
        for victim in range(WORLD_SIZE):
            every = EVERY_LONG if tally.is_long else EVERY_SHORT
            for number, call in enumerate(bench.calls(victim)):
                name = f"rank-{victim}/{call}"
                if (number % every == 0) if tally.only is None else tally.wants(name):
                    with tally.case("torch-ranks", name):
                        is_left = number % (LEFT_ALONE * every) == 0
                        bench.strike(victim, f"inject={call.name}:signal=KILL:when={call.count}", call.name, is_left)
                        tally.counts["crash points of two torch ranks"] += 1


class _Bench:
    def __init__(self, scratch: Path, port: int) -> None:
        self._scratch, self._port = scratch, port
        self._template = scratch / "template"
        self._num_boards = 0
        self._together(lambda rank: self._save(self._template, rank, 10))
        finished = scratch / "finished"
        shutil.copytree(self._template, finished)
        self._together(lambda rank: self._save(finished, rank, 20))
        self._files = {step: _files(finished / str(ident(step))) for step in (10, 20)}

    def calls(self, victim: int) -> list[Call]:
        with self._place() as place:
            peer = _fork(lambda: self._save(place, 1 - victim, 20))
            found = calls(lambda: self._save(place, victim, 20), place)
            hold(_code(peer) == DONE, "the reference save failed")
            self._num_boards += 1
            return found

    def strike(self, victim: int, option: str, call: str, is_left: bool) -> None:
        timeout_s = DEAD_PEER_TIMEOUT_S if is_left else SAVE_TIMEOUT_S
        with self._place() as place:
            peer = _fork(lambda: self._save(place, 1 - victim, 20, timeout_s))
            try:
                ended = run(lambda: self._save(place, victim, 20), "-e", f"trace={call}", "-e", option)
                # Not at once: it may be anywhere in its part.
                time.sleep(0 if is_left else 0.05)
            finally:
                if not is_left:
                    os.kill(peer, signal.SIGKILL)
                code = _code(peer)
            self._num_boards += 1
            hold(ended.code is None, "the fault did not happen", ended.text)
            hold(code != RAISED, "the survivor ended with an error that is none of ours")
            self._check(place, was_reported=code == DONE)

    def _check(self, place: Path, *, was_reported: bool) -> None:
        found, content, others = loaded(place)
        allowed = [ident(20)] if was_reported else [ident(10), ident(20)]
        hold(found in allowed, f"loaded {found}", others)
        hold(not others, "a checkpoint was published that is not whole", others)
        assert found is not None
        content.pop("MANIFEST.json", None)
        hold(content == self._files[found.step], f"{found} does not have the content that was saved")
        self._together(lambda rank: self._resume(place, rank, found.step))
        left = [path.name for path in place.iterdir() if path.name.startswith(".")]
        hold(not left, "litter outlives the next start", left)

    def _save(self, place: Path, rank: int, step: int, timeout_s: float = SAVE_TIMEOUT_S) -> None:
        saver, state = self._make(place, rank, attempt=0, step=step, timeout_s=timeout_s)
        saver.save(state)

    def _resume(self, place: Path, rank: int, step: int) -> None:
        saver, state = self._make(place, rank, attempt=1, step=0)
        restored = saver.restore(state)
        _, expected = self._make(place, rank, attempt=1, step=step)
        assert restored is not None and restored.step == step
        own, theirs = (each.capture(rank, WORLD_SIZE).tensors for each in (state, expected))
        assert own.keys() == theirs.keys() and all(own[key].equal(theirs[key]) for key in own), "another state"
        state.advance()
        saver.save(state)

    def _make(
        self, place: Path, rank: int, *, attempt: int, step: int, timeout_s: float = SAVE_TIMEOUT_S
    ) -> tuple[Checkpointer, TrainState]:
        import torch

        from resilient_launch.checkpoint.checkpointer import Checkpointer
        from resilient_launch.checkpoint.rng import seed_all
        from resilient_launch.checkpoint.torch_board import StoreBoard
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
        store = torch.distributed.TCPStore("127.0.0.1", self._port, is_master=False)
        board = StoreBoard(store, f"{self._num_boards}.{attempt}.{step if attempt == 0 else 0}")
        saver = Checkpointer(
            place,
            attempt=attempt,
            rank=rank,
            world_size=WORLD_SIZE,
            board=board,
            save_timeout_s=timeout_s,
            load_timeout_s=SAVE_TIMEOUT_S,
        )
        return saver, state

    def _together(self, act: Callable[[int], object]) -> None:
        pids = [_fork(lambda rank=rank: act(rank)) for rank in range(WORLD_SIZE)]  # type: ignore[misc]
        codes = [_code(pid) for pid in pids]
        self._num_boards += 1
        hold(codes == [DONE] * WORLD_SIZE, f"ranks ended with {codes}")

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        place = self._scratch / "place"
        shutil.copytree(self._template, place)
        try:
            yield place
        finally:
            shutil.rmtree(place)


def _warm_up(place: Path) -> None:
    import torch

    from resilient_launch.checkpoint.checkpointer import Checkpointer
    from resilient_launch.checkpoint.train_state import TrainState

    model = torch.nn.Linear(3, 2)
    state = TrainState(model=model, optimizer=torch.optim.SGD(model.parameters(), momentum=0.9))
    Checkpointer(place).save(state)
    Checkpointer(place, attempt=1).restore(state)


def _files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "MANIFEST.json"}


def _fork(act: Callable[[], object]) -> int:
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


def _code(pid: int) -> int:
    try:
        wait_for_end(pid)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)


@contextlib.contextmanager
def _store() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
