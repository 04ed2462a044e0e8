"""The training script's side: a step loop that saves when due, when the gang agreed, and before it must leave."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from resilient_launch.core.errors import UsageError
from resilient_launch.core.events import EventWriter
from resilient_launch.job.error_file import write_error_file
from resilient_launch.job.local_work import LocalWork
from resilient_launch.job.once import Once
from resilient_launch.job.page import Action, Outcome, Page, Phase, Reason
from resilient_launch.job.polling import Polling
from resilient_launch.job.rework import ReworkCheck
from resilient_launch.job.saver import Saver
from resilient_launch.job.workplace import Workplace

if TYPE_CHECKING:
    from resilient_launch.checkpoint.arrays import ArrayState
    from resilient_launch.checkpoint.outcomes import Origin
    from resilient_launch.checkpoint.train_state import TrainState

WINDOW_STEPS = 50
WINDOW_S = 1.0
HOLD_TIMEOUT_S = 30.0
T = TypeVar("T")
log = logging.getLogger("rlaunch")


class Stopped(SystemExit):
    """Raised by the step loop once the state is saved and this process should leave; ends the script with its code."""


class Run:
    """One worker's view of the run. Made by ``attach``; use it as a context manager.

    ``rank``, ``world_size``, ``local_rank``, ``attempt`` and ``restart`` (worker-group restart) say who this worker is.
    """

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self.rank, self.world_size, self.local_rank = workplace.rank, workplace.world_size, workplace.local_rank
        self.attempt, self.restart = workplace.attempt, workplace.restart
        self._page: Page = workplace.page
        self._ints = self._page.ints
        self._floats = self._page.floats
        self._events = EventWriter(
            workplace.paths.events / f"a{self.attempt:04d}.r{self.restart}.w{self.rank:05d}.jsonl",
            attempt=self.attempt,
            restart=self.restart,
            node=workplace.node_index,
            rank=self.rank,
        )
        self._page.pid = workplace.pid
        self._done_round = 0
        self._ends: list[float] = []
        self._first = 0
        self._mono0 = self._step_from = time.monotonic()
        self._saver = Saver(workplace, self._page, self._events)
        self._is_warm = False
        config = workplace.config
        self._local_every = config.local_every_steps if config.is_async else None
        self._stops_on_failure = workplace.config.on_save_failure == "stop"
        self._until: int | None = None
        self._local_work = LocalWork(self._page)
        self._once, self._polling = Once(workplace), Polling(workplace)
        self._rework: ReworkCheck | None = None
        self._enter(Phase.INIT)

    @property
    def batch_size(self) -> int:
        """This rank's share of the configuration's ``global_batch``: more for each where there are fewer ranks.

        Raises UsageError where the configuration has none, or the ranks cannot share it equally.
        """
        total = self._workplace.global_batch
        if total is None:
            raise UsageError("no global batch", why="the configuration sets none", hint="global_batch: 512")
        if total % self.world_size:
            raise UsageError(f"global batch {total}", why=f"{self.world_size} ranks cannot share it equally")
        return total // self.world_size

    # The step loop.

    def restore(self, state: TrainState | ArrayState) -> int:
        """Load the newest verified checkpoint into ``state``; returns its step, 0 when the run starts fresh.

        Raises CheckpointError when the run's configuration says that a mismatch (world size, layout, code version,
        keys, shapes, dtypes) stops the run.
        """
        self._enter(Phase.RESTORE)
        restored = self._saver.checkpointer.restore(state)
        step = state.step
        origin = self._saver.checkpointer.origin
        self._saver.restored(step, is_saved=restored is not None and origin.is_durable)
        if self.rank == 0:
            for note in state.inexactness(self.world_size):
                log.warning("%s", note)
            self._tell_resume(step, str(restored.id) if restored is not None else None, origin)
            self._rework = self._workplace.rework_check(step, self._events)
        return step

    def _tell_resume(self, step: int, checkpoint: str | None, origin: Origin) -> None:
        history = self._workplace.history()
        rework = max(history.last_step - step, 0)
        log.warning(
            "resume %s: attempt %d, SLURM_RESTART_COUNT %d, TORCHELASTIC_RESTART_COUNT %d, resume step %d, "
            "rework %d steps, world size %d, last end: %s",
            f"from {checkpoint} ({origin.tier})" if checkpoint else "fresh",
            self.attempt,
            self._workplace.slurm_restart_count,
            self.restart,
            step,
            rework,
            self.world_size,
            history.last_cause or "none",
        )
        self._events.emit(
            "resume",
            flush=True,
            resume_step=step,
            rework_steps=rework,
            world_size=self.world_size,
            slurm_restart_count=self._workplace.slurm_restart_count,
            torchelastic_restart_count=self.restart,
            last_cause=history.last_cause,
            checkpoint=checkpoint,
            tier=origin.tier if checkpoint else None,
            tier_why=origin.why,
        )

    def steps(self, state: TrainState | ArrayState, until: int) -> Iterator[int]:
        """Yield the index of every step still to do, up to ``until`` completed ones.

        After each, ``state.step`` and the position in the data go on by one step; checkpoints are made when due, when
        the gang agreed on one, and at the end. Raises Stopped (a SystemExit) when the state is saved and the job must
        leave.
        """
        self._first = state.step
        self._until = until
        self._mono0 = time.monotonic()
        self.boundary(state)
        while state.step < until:
            yield state.step
            state.advance()
            self.boundary(state)
        self._saver.settle()
        if self._page.saved_step != state.step:
            self._save(state, Reason.END, waits=True)
        self._flush_window()

    def boundary(self, state: TrainState | ArrayState) -> None:
        """Between two steps, for code that owns its loop: note progress, save if due or agreed, leave if told.

        Call it on every rank once a step, after ``state.advance()``. Costs about two microseconds when nothing is due.
        Raises Stopped like ``steps``.
        """
        step = state.step
        now = time.monotonic()
        ints, floats = self._ints, self._floats
        if step > ints[_STEP] >= 0:
            # A sign of life in the middle of a step makes it no shorter: how far ahead to agree follows from this.
            floats[_STEP_S] = now - self._step_from
            gap = now - floats[_BEAT]
            if gap > floats[_STEP_GAP]:
                self._note_gap(gap)
            self._ends.append(now - self._mono0)
            self._local_work.close_step(step)
            if len(self._ends) >= WINDOW_STEPS or self._ends[-1] - self._ends[0] > WINDOW_S:
                self._flush_window()
            if ints[_PHASE] != Phase.STEP:
                self._enter(Phase.STEP)
            if not self._is_warm:
                self._is_warm = True
                if self._workplace.config.is_async:
                    # Training waits for it as it does for a save, and longer than for a step.
                    self._enter(Phase.SAVE)
                    self._saver.warm_up(state)
                    self._enter(Phase.STEP)
                    now = time.monotonic()
        elif ints[_PHASE] < Phase.FIRST_STEP:
            self._enter(Phase.FIRST_STEP)
        ints[_STEP] = step
        floats[_BEAT] = self._step_from = now
        if ints[_HOLD_ROUND] != self._done_round:
            self._obey(state)
        elif self._workplace.asks_agreement and self._workplace.wants_agreement():
            self._workplace.ask_agreement()
        every = self._workplace.every_steps
        if every and step % every == 0 and step > self._saver.begun_step and step > 0:
            self._save(state, Reason.STEPS)
        if self._local_every and step % self._local_every == 0 and step > max(self._saver.begun_step, 0):
            self._saver.keep(state)
        if self._stops_on_failure and self._saver.failure is not None:
            raise self._saver.failure

    def _obey(self, state: TrainState | ArrayState) -> None:
        """The agent asked to hold at a step: go on if it is not reached, else wait for the word and act on it."""
        page, step = self._page, state.step
        patience = time.monotonic() + HOLD_TIMEOUT_S
        while page.word < page.hold_round:
            if page.hold < 0 or step < page.hold:
                return
            if time.monotonic() > patience:
                log.error("no word on the agreed step %d within %.0f s: going on", page.hold, HOLD_TIMEOUT_S)
                return
            time.sleep(0.0005)
            # Waiting for the word is bounded by itself: no hang.
            self._floats[_BEAT] = time.monotonic()
        if step < page.hold:
            return
        self._done_round = page.done_round = page.word
        action, reason = Action(page.action), Reason(page.reason)
        self._flush_window()
        if action is Action.SAVE_AND_STOP:
            before = Phase(page.phase)
            self._enter(Phase.SAVE)
            self._saver.save_before_leaving(state, page.deadline)
            self._enter(before)
        elif self._saver.begun_step != step:
            self._save(state, reason)
        if action is Action.SAVE_AND_STOP:
            self._leave(Outcome.STOPPED)
            raise Stopped(self._workplace.stopped_exit_code)

    def checkpoint(self, state: TrainState | ArrayState) -> None:
        """Save now, and return when it is durable. Every rank must call it at the same step.

        Raises CheckpointError where it can't be saved.
        """
        self._save(state, Reason.REQUEST, waits=True)

    def _save(self, state: TrainState | ArrayState, reason: Reason, *, waits: bool = False) -> None:
        before = Phase(self._page.phase)
        # What comes after is written after it, should this process be killed.
        self._flush_window()
        self._enter(Phase.SAVE)
        self._saver.save(state, reason, waits=waits)
        self._enter(before)
        self._step_from = time.monotonic()

    # Pieces for code that owns its loop.

    def seed(self, base: int) -> None:
        """Seed Python's, NumPy's and torch's generators, each rank with numbers of its own.

        All of them are part of the training state: one left unseeded makes two runs differ although nothing draws from
        it.
        """
        import numpy
        import torch

        own = base * 1_000_003 + self.rank
        random.seed(own)
        numpy.random.seed(own % 2**32)
        torch.manual_seed(own)

    def stop_requested(self, *, together: bool = False) -> bool:
        """Whether a notice stands. For long phases (warm-up, evaluation): return to the loop soon, which then saves.

        Ranks may hear of it at different moments. ``together``, called by every rank, the answer is the same on all of
        them, as a phase needs that goes through collectives; that costs a question to the store, about a millisecond.
        """
        self.heartbeat()
        wanted = bool(self._page.notice_cause) or self._workplace.wants_agreement()
        return self._polling.answer(wanted, together=together)

    def polled(self, items: Iterable[T], *, together: bool = False) -> Iterator[T]:
        """``items`` while no notice stands: ``for batch in run.polled(batches): ...`` in warm-up and evaluation.

        ``together`` as with ``stop_requested``, with as many items on every rank.
        """
        for item in items:
            if self.stop_requested(together=together):
                return
            yield item

    def heartbeat(self) -> None:
        """Say that this worker is alive, from a long phase between steps."""
        now = time.monotonic()
        self._note_gap(now - self._floats[_BEAT])
        self._floats[_BEAT] = now

    def local_work(self) -> LocalWork:
        """Time a block as work of this rank's own, once or more a step: ``with run.local_work(): ...``.

        Put in it what a step does before it meets the other ranks (loading the batch, the forward pass, a backward pass
        under ``no_sync``). A rank that is persistently slower there than its peers is reported as a straggler. On CUDA
        the device's own time is measured, without waiting for it.
        """
        return self._local_work

    @contextmanager
    def phase(self, phase: Phase = Phase.EVAL) -> Iterator[None]:
        """Mark a block as something other than stepping, evaluation by default."""
        before = Phase(self._page.phase)
        self._enter(phase)
        try:
            yield
        finally:
            self._enter(before)

    @contextmanager
    def once(self, step: int, name: str, phase: Phase = Phase.EVAL) -> Iterator[bool]:
        """Do something once in the run's life: ``with run.once(step, "eval") as is_due: ...``, on every rank.

        ``is_due`` is the same on every rank, and false once the block has ended well before, in whatever attempt.
        A block that was interrupted is due again, also where ``stop_requested`` or ``polled`` told it to end early; so
        is one of a lineage that was left behind. What it draws from
        Python's, NumPy's and torch's generators does not count: training goes on as if it had not run.
        """
        self._polling.has_said_stop = False
        with self._once.block(step, name, is_cut_short=lambda: self._polling.has_said_stop) as is_due:
            if not is_due:
                yield False
                return
            with self.phase(phase):
                yield True

    def log(self, step: int, **values: float) -> None:
        """Record values for a step, on rank 0. Idempotent: a step that runs again replaces what it logged before.

        Losses and learning rates of steps that are computed again after a resume are compared with those logged
        before; the first difference is a warning in the log and an event.
        """
        if self.rank == 0:
            numbers = {name: float(value) for name, value in values.items()}
            self._events.emit("metric", step=step, values=numbers)
            self._workplace.metrics.update(numbers)
            if self._rework is not None:
                self._rework.compare(step, numbers)

    # Leaving.

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush_window()
        self._saver.close(is_clean=error is None)
        if error is None:
            self._leave(Outcome.FINISHED)
        elif not isinstance(error, SystemExit | KeyboardInterrupt):
            write_error_file(error)
        self._events.close()
        self._workplace.close(Outcome(self._page.outcome), self._page.step)

    def _leave(self, outcome: Outcome) -> None:
        self._enter(Phase.LEAVE)
        self._page.outcome = outcome

    def _enter(self, phase: Phase) -> None:
        self.heartbeat()
        self._page.phase = phase
        goal: dict[str, Any] = {"until": self._until} if phase is Phase.FIRST_STEP and self._until is not None else {}
        self._events.emit("phase", phase=phase.name.lower(), **goal)

    def _note_gap(self, gap_s: float) -> None:
        """Remember the longest time without a sign of life in this phase: hang timeouts follow from it."""
        slot = Page.largest_gap_s[self._ints[_PHASE]]
        if gap_s > self._floats[slot]:
            self._floats[slot] = gap_s

    def _flush_window(self) -> None:
        if self._ends:
            ends = [round(end, 6) for end in self._ends]
            first, local_s = self._local_work.take()
            local = {"local_first": first, "local_s": local_s} if local_s else {}
            self._events.emit("window", flush=True, first=self._first, mono0=round(self._mono0, 6), end_s=ends, **local)
            self._first += len(ends)
            self._ends.clear()


def _slot(field: str) -> int:
    return int(vars(Page)[field].slot)


# The hot fields by their slots: a descriptor's call would cost as much as all else a boundary does.
_PHASE, _STEP, _HOLD_ROUND = _slot("phase"), _slot("step"), _slot("hold_round")
_BEAT, _STEP_S = _slot("beat_mono"), _slot("step_s")
_STEP_GAP = Page.largest_gap_s[Phase.STEP]
