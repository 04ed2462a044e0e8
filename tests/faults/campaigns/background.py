"""Two ranks save in the background; at each call that a writer process makes, it dies, its training dies, or it fails.

The writers are children of this process, as they are of a node agent, and outlive the training that they serve.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.background.client import spawn
from resilient_launch.core.errors import CheckpointError
from tests.faults.campaigns.operations import must_be_durable
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
from tests.faults.campaigns.strikes import LASTING, codes, memory
from tests.faults.campaigns.tally import Tally, hold
from tests.faults.campaigns.tracing import DONE, Call, attached, list_calls, read_trace

OLD, NEW = 10, 20
SAVE_TIMEOUT_S, DEAD_PEER_TIMEOUT_S = 30.0, 4.0
WAIT_S = 120.0
EVERY_SHORT = 8
LEFT_ALONE = 10
"""The peer of every so many-th rank that is killed runs into its deadline; the others are killed too."""
MOST_TEXT_BYTES = 1 << 14


def background(tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch, word_store() as port:
        warm_up(Path(scratch) / "warm")
        with contextlib.closing(_Bench(Path(scratch), port)) as bench:
            number = 0
            for victim in range(WORLD_SIZE):
                for place, call in enumerate(bench.calls(victim)):
                    for what, strike in _strikes(bench, victim, call, place, is_long=tally.is_long):
                        number += 1
                        name = f"writer-{victim}/{call}/{what}"
                        is_due = tally.is_long or tally.only is not None or number % EVERY_SHORT == 1
                        if is_due and tally.wants(name):
                            with tally.case("background", name):
                                strike()
                                is_kill = what in ("writer-dies", "training-dies")
                                tally.counts[
                                    f"{'crash points' if is_kill else 'errors injected'} in the background"
                                ] += 1


def _strikes(
    bench: _Bench, victim: int, call: Call, place: int, *, is_long: bool
) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "writer-dies", lambda: bench.kill_writer(victim, call)
    yield "training-dies", lambda: bench.kill_training(victim, call, is_left=place % LEFT_ALONE == 0)
    for code in codes(call, place, is_long=is_long):
        yield code, lambda code=code: bench.fail(victim, call, code)  # type: ignore[misc]


class _Bench:
    """A directory with the checkpoint of step OLD, copied for each strike, and one writer for each rank."""

    def __init__(self, scratch: Path, port: int) -> None:
        self._scratch, self._port = scratch, port
        self._writers: dict[int, subprocess.Popen[bytes]] = {}
        self._num_groups = 0
        self._template = scratch / "template"
        with self._group(self._template, step=OLD, num_saves=1) as group:
            group.finish()
        self._expected = {OLD: files_of(self._template / str(store.published(self._template)[0]))}
        for step in (NEW, None):
            with self._place() as place:
                with self._group(place, step=step) as group:
                    group.finish()
                self._expected |= {each.step: files_of(place / str(each)) for each in store.published(place)}

    def close(self) -> None:
        for writer in self._writers.values():
            writer.kill()
            writer.wait()

    def calls(self, victim: int) -> list[Call]:
        """What the victim's writer does in its save of step NEW."""
        with self._place() as place, self._group(place, step=NEW) as group:
            with attached(self._writers[victim].pid, "-e", "trace=%file,%desc") as trace:
                group.save()
                found = list_calls(read_trace(trace), place)
            group.finish()
            return found

    def kill_writer(self, victim: int, call: Call) -> None:
        with self._place() as place, self._group(place, step=NEW) as group:
            with attached(self._writers[victim].pid, *_inject(call, "signal=KILL")):
                said = group.save()
            hold(self._writers[victim].wait(WAIT_S) == -signal.SIGKILL, "the fault did not happen")
            self._must_be(place, [NEW] if "" in said else [OLD, NEW])
            for text in said:
                hold(not text or f"rank {victim}: " in text, "the error does not name the rank", text)
            group.finish()
            self._must_be(place, [NEW + 1])
            store.sweep(place)
            hold(not _hidden(place), "litter outlives the next start", _hidden(place))

    def kill_training(self, victim: int, call: Call, *, is_left: bool) -> None:
        """The writer stands still between two calls, and goes on when the next start of the training has restored."""
        timeout_s = DEAD_PEER_TIMEOUT_S if is_left else SAVE_TIMEOUT_S
        with self._place() as place, self._group(place, step=NEW, timeout_s=timeout_s) as group:
            writer = self._writers[victim]
            with contextlib.ExitStack() as tracing:
                # A signal that comes with a call takes effect after it.
                trace = tracing.enter_context(attached(writer.pid, *_inject(call, "signal=STOP")))
                group.go()
                _until(lambda: any("stopped by SIGSTOP" in line for line in read_trace(trace)), "the writer's stop")
                group.kill(*([victim] if is_left else range(WORLD_SIZE)))
                if is_left:
                    # Its error must not depend on that writer.
                    group.await_one(1 - victim)
                    group.kill(1 - victim)
                with self._group(place, step=None, is_awaited=False) as later:
                    _until(later.have_resumed, "the next start of the training")
                    writer.send_signal(signal.SIGCONT)
                    # Calls are counted by thread: one of the next save's would be struck again.
                    tracing.close()
                    later.await_all()
                    later.finish()
                    resumed = later.resumed()
            hold(len(resumed) == 1 and resumed <= {OLD, NEW}, f"resumed from {resumed}")
            (step,) = resumed
            known = {each.step for each in store.published(place)}
            hold(step == NEW or NEW not in known, "a save whose training is gone was published behind its back", known)
            self._must_be(place, [step + 1])
            hold(not _hidden(place), "litter outlives the next save", _hidden(place))

    def fail(self, victim: int, call: Call, code: str) -> None:
        with self._place() as place, self._group(place, step=NEW) as group:
            what, lasting = f"error={code.removesuffix(LASTING)}", "+" if code.endswith(LASTING) else ""
            with attached(self._writers[victim].pid, *_inject(call, what, lasting)) as trace:
                said = group.save()
                lines = read_trace(trace)
            num_struck = sum("(INJECTED)" in line for line in lines)
            hold(num_struck, "the fault did not happen", lines[-3:])
            hold(all(said) or not any(said), "one rank knows what the other does not", said)
            self._must_be(place, [OLD] if any(said) else [NEW])
            if any(said):
                for text in said:
                    hold(f"rank {victim}: " in text and str(place) in text, "the error says too little", text)
                hold(num_struck > 1 or not _hidden(place), "a save that failed keeps room on the disk", _hidden(place))
            else:
                must_be_durable(lines)
            group.finish()
            self._must_be(place, [NEW + 1])
            # What lasts may also have kept the room from being given back; the next start does that.
            hold(num_struck > 1 or not _hidden(place), "litter outlives the next save", _hidden(place))

    def _must_be(self, place: Path, steps: list[int]) -> None:
        found, content, others = loaded(place)
        hold(found is not None and found.step in steps, f"loaded {found} instead of one of {steps}", others)
        hold(not others, "a checkpoint was published that is not whole", others)
        assert found is not None
        content.pop("MANIFEST.json", None)
        hold(content == self._expected[found.step], f"{found} does not have the content that was saved")

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        place = self._scratch / "place"
        shutil.copytree(self._template, place)
        try:
            yield place
        finally:
            shutil.rmtree(place)

    @contextlib.contextmanager
    def _group(
        self,
        place: Path,
        *,
        step: int | None,
        num_saves: int = 2,
        timeout_s: float = SAVE_TIMEOUT_S,
        is_awaited: bool = True,
    ) -> Iterator[_Group]:
        sockets = [self._scratch / f"writer{rank}" for rank in range(WORLD_SIZE)]
        for rank, socket in enumerate(sockets):
            if rank not in self._writers or self._writers[rank].poll() is not None:
                socket.unlink(missing_ok=True)
                self._writers[rank] = spawn(socket)
        self._num_groups += 1
        words = Words(port=self._port, prefix=f"{self._num_groups}", sockets=tuple(sockets))
        group = _Group(place, words, step=step, num_saves=1 if step is None else num_saves, timeout_s=timeout_s)
        try:
            if is_awaited:
                group.await_all()
            yield group
        finally:
            group.close()


@dataclass(frozen=True, kw_only=True)
class Words:
    """Over what a group talks: the store's port, a prefix of its own there, and the writers' sockets by rank."""

    port: int
    prefix: str
    sockets: tuple[Path, ...]


class _Group:
    """Both ranks of one start of the training, in processes of their own that wait for a word before each save.

    They begin at ``step``; where that is None they restore, and are a later start of the training.
    """

    def __init__(self, place: Path, words: Words, *, step: int | None, num_saves: int, timeout_s: float) -> None:
        self._place, self._words, self._step, self._timeout_s = place, words, step, timeout_s
        self._num_saves, self._num_made = num_saves, 0
        self._told = [mmap.mmap(-1, MOST_TEXT_BYTES) for _ in range(WORLD_SIZE)]
        self._ready = [os.pipe() for _ in range(WORLD_SIZE)]
        self._go = [os.pipe() for _ in range(WORLD_SIZE)]
        self._pids: dict[int, int] = {}
        for rank in range(WORLD_SIZE):
            self._pids[rank] = fork(lambda rank=rank: self._train(rank))  # type: ignore[misc]

    # In a rank's process.

    def _train(self, rank: int) -> None:
        from resilient_launch.checkpoint.background.saving import Background
        from resilient_launch.checkpoint.checkpointer import Checkpointer

        for _, end in self._go:
            # Whoever waits for a word of a campaign that is gone hears of it.
            os.close(end)
        board = board_of(self._words.port, self._words.prefix)
        socket = self._words.sockets[rank]
        saver = Checkpointer(
            self._place,
            restart=0 if self._step else 1,
            rank=rank,
            world_size=WORLD_SIZE,
            board=board,
            keep=8,
            save_timeout_s=self._timeout_s,
            load_timeout_s=SAVE_TIMEOUT_S,
            # The writers serve one place after another here, and what one leaves in memory is not the next one's.
            background=Background(board, rank=rank, world_size=WORLD_SIZE, socket=socket, is_left_behind=False),
        )
        state, resumed = make_state(self._step or 0, rank), self._step
        if resumed is None:
            restored = saver.restore(state)
            assert restored is not None
            resumed = restored.step
            must_equal(state, rank, resumed)
            self._tell(rank, [], resumed)
            state.advance()
        saver.warm_up(state)
        saver.settle()
        said: list[str] = []
        for _ in range(self._num_saves):
            self._wait_for_word(rank)
            try:
                saver.begin_save(state).wait(WAIT_S)
                said.append("")
            except CheckpointError as error:
                said.append(str(error))
            # It is durable before its writer is done: what nothing depends on comes last.
            saver.settle()
            self._tell(rank, said, resumed)
            state.advance()
        self._wait_for_word(rank)
        saver.close(WAIT_S)

    def _tell(self, rank: int, said: list[str], resumed: int) -> None:
        data = json.dumps({"said": said, "resumed": resumed}).encode()
        self._told[rank][: len(data)] = data

    def _wait_for_word(self, rank: int) -> None:
        os.write(self._ready[rank][1], b".")
        if not os.read(self._go[rank][0], 1):
            os._exit(1)

    # In the campaign's process.

    def await_all(self) -> None:
        """Until every rank waits for a word."""
        for rank in self._pids:
            self.await_one(rank)

    def await_one(self, rank: int) -> None:
        ready = select.select([self._ready[rank][0]], [], [], WAIT_S)[0]
        hold(ready and os.read(self._ready[rank][0], 1), f"rank {rank} does not come to its next save")

    def go(self) -> None:
        for rank in self._pids:
            os.write(self._go[rank][1], b".")

    def save(self) -> list[str]:
        """One save: the error of every rank, empty where there was none."""
        self.go()
        self.await_all()
        self._num_made += 1
        return [str(self._found(rank)["said"][-1]) for rank in range(WORLD_SIZE)]

    def finish(self) -> None:
        """The saves that are left, which must work, and the end of both ranks."""
        while self._num_made < self._num_saves:
            said = self.save()
            hold(not any(said), "a save that nothing disturbs does not work", said)
        self.go()
        codes = [code_of(self._pids.pop(rank)) for rank in range(WORLD_SIZE)]
        hold(codes == [DONE] * WORLD_SIZE, f"ranks ended with {codes}")

    def resumed(self) -> set[int]:
        return {int(self._found(rank)["resumed"]) for rank in range(WORLD_SIZE)}

    def have_resumed(self) -> bool:
        return all(self._told[rank][0] for rank in range(WORLD_SIZE))

    def kill(self, *ranks: int) -> None:
        for rank in ranks:
            os.kill(self._pids[rank], signal.SIGKILL)
            os.waitpid(self._pids.pop(rank), 0)

    def close(self) -> None:
        self.kill(*self._pids)
        for ends in (*self._ready, *self._go):
            for end in ends:
                os.close(end)

    def _found(self, rank: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._told[rank][:].rstrip(b"\0"))
        return found


def _inject(call: Call, what: str, lasting: str = "") -> list[str]:
    return ["-e", f"trace={call.name}", "-e", f"inject={call.name}:{what}:when={call.count}{lasting}"]


def _hidden(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith(".")]


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        hold(time.monotonic() < deadline, f"{what} does not come")
        time.sleep(0.002)
