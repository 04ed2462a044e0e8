"""Two ranks with torch save together, and one of them is killed at each file system call that it makes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.campaigns.operations import ident
from tests.faults.campaigns.ranks import (
    WORLD_SIZE,
    board_of,
    code_of,
    files_of,
    fork,
    make_state,
    must_equal,
    warm_up,
    word_store,
)
from tests.faults.campaigns.states import loaded
from tests.faults.campaigns.strikes import memory
from tests.faults.campaigns.tally import Tally, hold
from tests.faults.campaigns.tracing import DONE, RAISED, Call, calls, run

if TYPE_CHECKING:
    from resilient_launch.checkpoint.checkpointer import Checkpointer
    from resilient_launch.checkpoint.train_state import TrainState

SAVE_TIMEOUT_S = 20.0
DEAD_PEER_TIMEOUT_S = 1.0
EVERY_LONG, EVERY_SHORT = 1, 9
LEFT_ALONE = 10
"""The survivor of every so many-th kill runs into its deadline; the others are killed too, as a worker group is."""


def torch_ranks(tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch, word_store() as port:
        warm_up(Path(scratch) / "warm")
        bench = _Bench(Path(scratch), port)
        for victim in range(WORLD_SIZE):
            every = EVERY_LONG if tally.is_long else EVERY_SHORT
            for number, call in enumerate(bench.calls(victim)):
                name = f"rank-{victim}/{call}"
                if (tally.only is not None or number % every == 0) and tally.wants(name):
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
        self._files = {step: files_of(finished / str(ident(step))) for step in (10, 20)}

    def calls(self, victim: int) -> list[Call]:
        with self._place() as place:
            peer = fork(lambda: self._save(place, 1 - victim, 20))
            found = calls(lambda: self._save(place, victim, 20), place)
            hold(code_of(peer) == DONE, "the reference save failed")
            self._num_boards += 1
            return found

    def strike(self, victim: int, option: str, call: str, is_left: bool) -> None:
        timeout_s = DEAD_PEER_TIMEOUT_S if is_left else SAVE_TIMEOUT_S
        with self._place() as place:
            peer = fork(lambda: self._save(place, 1 - victim, 20, timeout_s))
            try:
                ended = run(lambda: self._save(place, victim, 20), "-e", f"trace={call}", "-e", option)
                # Not at once: it may be anywhere in its part.
                time.sleep(0 if is_left else 0.05)
            finally:
                if not is_left:
                    os.kill(peer, signal.SIGKILL)
                code = code_of(peer)
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
        assert restored is not None and restored.step == step
        must_equal(state, rank, step)
        state.advance()
        saver.save(state)

    def _make(
        self, place: Path, rank: int, *, attempt: int, step: int, timeout_s: float = SAVE_TIMEOUT_S
    ) -> tuple[Checkpointer, TrainState]:
        from resilient_launch.checkpoint.checkpointer import Checkpointer

        saver = Checkpointer(
            place,
            attempt=attempt,
            rank=rank,
            world_size=WORLD_SIZE,
            board=board_of(self._port, f"{self._num_boards}.{attempt}.{step if attempt == 0 else 0}"),
            save_timeout_s=timeout_s,
            load_timeout_s=SAVE_TIMEOUT_S,
        )
        return saver, make_state(step, rank)

    def _together(self, act: Callable[[int], object]) -> None:
        pids = [fork(lambda rank=rank: act(rank)) for rank in range(WORLD_SIZE)]  # type: ignore[misc]
        codes = [code_of(pid) for pid in pids]
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
