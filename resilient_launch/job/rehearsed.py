"""A Run under rehearsal: it writes down what every step saw and left behind, and has the mishaps it is told to have."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from resilient_launch.checkpoint.fingerprint import fingerprint, pieces, put_back, take
from resilient_launch.cluster.fake.proctree import start_ticks
from resilient_launch.job import mishaps
from resilient_launch.job.page import Outcome, Reason
from resilient_launch.job.rehearsal import Instructions, Mishap, MishapKind, Stage
from resilient_launch.job.run import Run
from resilient_launch.job.saver import Saver
from resilient_launch.job.workplace import Workplace

if TYPE_CHECKING:
    from resilient_launch.checkpoint.arrays import ArrayState
    from resilient_launch.checkpoint.train_state import TrainState
    from resilient_launch.job.watch_torch import TorchEyes

GATE_TIMEOUT_S = 240.0
_POLL_S = 0.02


class RehearsedRun(Run):
    """Same loop, same saves; ends after the instructions' number of steps, whatever the script says."""

    def __init__(self, workplace: Workplace, instructions: Instructions) -> None:
        super().__init__(workplace)
        self._told, self._stage = instructions, Stage(instructions.stage)
        self._trace = self._stage.trace(self.attempt, self.restart, self.rank)
        self._values: dict[str, float] = {}
        self._resumed_from: int | None = None
        self._restored_at: int | None = None
        self._drop = self._choose_drop()
        self._saver = _RehearsedSaver(self, leaves_out=self._drop is not None, prepare=self._prepare_save)
        self._is_in_steps, self._is_first = False, True
        self._num_saves = 0
        self._eyes = self._open_eyes()
        self._stage.mark(f"pid.{self.attempt:04d}.{self.restart:03d}.{self.rank:05d}", **_who())

    def _open_eyes(self) -> TorchEyes | None:
        if self._workplace.has_arrays or "torch" not in sys.modules:
            return None
        from resilient_launch.job.watch_torch import TorchEyes

        return TorchEyes(self._own_save_mishap)

    def _choose_drop(self) -> str | None:
        drops = self._told.drops
        return drops[self.restart - 1] if self.attempt == 0 and 0 < self.restart <= len(drops) else None

    # What the script calls.

    def seed(self, base: int) -> None:
        super().seed(base + self._told.seed_offset)

    def log(self, step: int, **values: float) -> None:
        super().log(step, **values)
        self._values.update({name: float(value) for name, value in values.items()})

    def restore(self, state: TrainState | ArrayState) -> int:
        self._eyes = self._eyes or self._open_eyes()
        fresh = take(state, self._drop, self.world_size) if self._drop else None
        step = super().restore(state)
        if step > 0:
            self._resumed_from = step
            if self._drop:
                put_back(state, self._drop, fresh, self.world_size)
        elif self._told.seed_offset:
            _reseed(state, self._told.seed_offset)
        self._restored_at = state.step
        return state.step

    def steps(self, state: TrainState | ArrayState, until: int) -> Iterator[int]:
        self._is_in_steps = True
        return super().steps(state, min(until, self._told.steps))

    def boundary(self, state: TrainState | ArrayState) -> None:
        if self._restored_at is None:
            # A script that restores by itself.
            self._restored_at, self._resumed_from = state.step, state.step or None
        self._eyes = self._eyes or self._open_eyes()
        self._record(state)
        if self._drop and state.step >= self._restored_at + self._told.drop_steps:
            os.kill(os.getpid(), signal.SIGKILL)
        for mishap in self._due(state.step, "kill", "freeze", "gate"):
            self._have(mishap)
        if state.step > self._restored_at:
            time.sleep(self._told.pace_s)
        super().boundary(state)
        if state.step >= self._told.steps and not self._is_in_steps:
            # A loop of the script's own, which may go on far beyond the rehearsal.
            self._saver.settle()
            if self._page.saved_step != state.step:
                self._save(state, Reason.END, waits=True)
            self._leave(Outcome.FINISHED)
            raise SystemExit(0)

    # What is seen.

    def _record(self, state: TrainState | ArrayState) -> None:
        seen = fingerprint(state, self.rank, self.world_size)
        parts = dict(seen.parts)
        rates: list[float] = []
        inputs: str | None = None
        if self._eyes is not None:
            unknown, rates, inputs = self._eyes.look(state)
            parts |= unknown
        self._trace.write(
            step=state.step,
            t=round(time.time(), 3),
            attempt=self.attempt,
            restart=self.restart,
            rank=self.rank,
            world_size=self.world_size,
            resumed_from=self._resumed_from,
            is_first=self._is_first,
            dropped=self._drop,
            pieces=pieces(state, self.world_size),
            parts=parts,
            tensors=seen.tensors,
            learning_rates=rates,
            inputs=inputs,
            values=self._values,
        )
        self._values, self._is_first = {}, False

    # What happens.

    def _due(self, step: int, *kinds: MishapKind) -> list[Mishap]:
        """The mishaps of these kinds whose time has come for this worker, each once."""
        found = []
        for number, each in enumerate(self._told.mishaps):
            is_here = each.rank in (None, self.rank) and each.attempt in (None, self.attempt)
            is_now = step == each.step if each.kind.endswith("-save") else step >= each.step
            if each.kind in kinds and is_here and is_now and self._stage.mark(f"had.{number}.{self.rank:05d}"):
                found.append(each)
        return found

    def _have(self, mishap: Mishap) -> None:
        # Which checkpoints there are by now must not depend on how fast the storage is.
        if self._saver.begun_step >= 0:
            self._saver.settle()
        match mishap.kind:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "freeze":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "gate":
                self._wait_at_gate(mishap)

    def _wait_at_gate(self, mishap: Mishap) -> None:
        """Until this rank hears a notice or the gate is opened; whoever hears a notice opens it for all."""
        name = f"gate.{mishap.step:08d}"
        self._stage.mark(f"at.{name}.{self.rank:05d}")
        patience = time.monotonic() + GATE_TIMEOUT_S
        while not self._stage.is_marked(f"open.{name}") and time.monotonic() < patience:
            if self._page.notice_cause or self._page.hold >= 0:
                self._stage.mark(f"open.{name}")
            self.heartbeat()
            time.sleep(_POLL_S)

    def _prepare_save(self, step: int, reason: str) -> bool:
        """Arrange what is to happen in this save; whether anything is."""
        if reason == Reason.NOTICE.name.lower() and self._due_slow_save():
            time.sleep(GATE_TIMEOUT_S)
        due = self._due(step, "kill-in-save", "stop-in-save", "refuse-save")
        for mishap in due:
            end = {"kill-in-save": _kill, "stop-in-save": self._stop, "refuse-save": _refuse}[mishap.kind]
            mishaps.at_file_of_save(self._workplace.paths.checkpoints, step, num_files=1, end=end)
        return bool(due)

    def _due_slow_save(self) -> bool:
        return any(
            each.kind == "slow-save" and self._stage.mark(f"had.{number}.{self.rank:05d}")
            for number, each in enumerate(self._told.mishaps)
        )

    def _stop(self) -> None:
        if self._stage.mark("stopped", node=os.environ.get("RLAUNCH_NODE", ""), **_who()):
            os.kill(os.getpid(), signal.SIGSTOP)

    def _own_save_mishap(self, path: str, existed: bool) -> bool:
        """Whether the process is to die in this ``torch.save``."""
        self._num_saves += 1
        if self._num_saves > 1 and self._due(self._page.step, "kill-in-own"):
            self._stage.mark("own-save", path=path, existed=existed)
            return True
        return False


def _who() -> dict[str, Any]:
    """This process, and no later one of its number."""
    return {"pid": os.getpid(), "ticks": start_ticks(os.getpid())}


class _RehearsedSaver(Saver):
    """Leaves out the saves of a start that drops a piece; makes those with a mishap where it meets this process."""

    def __init__(self, run: RehearsedRun, *, leaves_out: bool, prepare: Callable[[int, str], bool]) -> None:
        super().__init__(run._workplace, run._page, run._events)
        self._leaves_out, self._prepare = leaves_out, prepare

    def save(
        self, state: TrainState | ArrayState, reason: Reason, *, deadline: float = 0.0, waits: bool = False
    ) -> None:
        if not self._leaves_out:
            super().save(state, reason, deadline=deadline, waits=waits)

    def save_before_leaving(self, state: TrainState | ArrayState, deadline: float) -> None:
        if not self._leaves_out:
            super().save_before_leaving(state, deadline)

    def _in_foreground(self, step: int, reason: str) -> bool:
        return self._prepare(step, reason)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _refuse() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _reseed(state: Any, offset: int) -> None:
    """Give a sampler of ours another order; one of another kind keeps its own."""
    from resilient_launch.checkpoint.sampler import ResumableSampler

    data = getattr(state, "data", None)
    if isinstance(data, ResumableSampler):
        data.load_state_dict({**data.state_dict(), "seed": data.seed + offset})
