"""A worker's saves: begun when the step loop says, seen through in the background, told in events and on the page."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.events import EventWriter
from resilient_launch.job.page import Page, Reason
from resilient_launch.job.workplace import Workplace
from resilient_launch.policy.emergency import Act, Choice, InFlight, SaveTimes, choose

if TYPE_CHECKING:
    from resilient_launch.checkpoint.arrays import ArrayState
    from resilient_launch.checkpoint.outcomes import SaveReport, Saving
    from resilient_launch.checkpoint.train_state import TrainState

LEAVE_S = 10.0
"""How long a worker that fails or was told to leave waits for its save in flight: the other ranks may be gone."""
AGREE_S = 30.0
log = logging.getLogger("rlaunch")


class Saver:
    """``begun_step`` is the step of the newest save that was begun, which is durable once the page says so.

    ``failure`` is how the newest save in the background failed, until another one succeeds.
    """

    def __init__(self, workplace: Workplace, page: Page, events: EventWriter) -> None:
        self._workplace, self._page, self._events = workplace, page, events
        self.begun_step = -1
        self.failure: CheckpointError | None = None
        self._past: list[SaveTimes] = []
        self._is_warm = False
        self._refusal = self._spare_refusal = ""

    @property
    def checkpointer(self) -> Any:
        """A Checkpointer or an ArrayCheckpointer, as the state is."""
        return self._workplace.checkpointer

    def restored(self, step: int, *, is_saved: bool) -> None:
        """Training goes on from ``step``; not saved are the run's beginning, and what came from memory alone."""
        if is_saved:
            self.begun_step = step
        self._page.saved_step = self.begun_step
        self._page.resume_step = step

    def warm_up(self, state: TrainState | ArrayState) -> None:
        """After the first step, when the optimizer has its state: make room for copies of it."""
        if self._is_warm or not self._workplace.config.is_async:
            return
        self._is_warm = True
        try:
            self.checkpointer.warm_up(state)
        except CheckpointError as error:
            # The save itself will say so again, when it is due.
            log.error("this state can't be saved: %s", error)

    def save(
        self, state: TrainState | ArrayState, reason: Reason, *, deadline: float = 0.0, waits: bool = False
    ) -> None:
        """Save ``state``; ``waits`` until it is durable and raises CheckpointError where it can't be.

        Without, a save that fails later is told in ``failure``. ``deadline`` is wall-clock seconds, 0 for none.
        """
        began, name = time.monotonic(), reason.name.lower()
        self._events.emit("checkpoint", flush=True, step=state.step, status="begin", reason=name)
        self.begun_step = state.step
        if not self._workplace.config.is_async:
            # Nobody must be left to wait for a save that an earlier configuration began.
            waits = True

        def on_end(saving: Saving, outcome: SaveReport | CheckpointError) -> None:
            self._on_end(saving, name, outcome)

        self._page.writing = 1
        try:
            saving = self.checkpointer.begin_save(
                state,
                reason=name,
                timeout_s=self._timeout_s(deadline),
                on_end=on_end,
                in_foreground=self._in_foreground(state.step, name),
            )
        except CheckpointError as error:
            self._fail(state.step, name, error)
            if waits:
                raise
            return
        self._note_refusal()
        if not saving.is_over:
            blocking_s = round(time.monotonic() - began, 6)
            self._events.emit(
                "checkpoint", flush=True, step=state.step, status="staged", reason=name, blocking_s=blocking_s
            )
        if waits:
            saving.wait()

    def keep(self, state: TrainState | ArrayState) -> None:
        """Keep a copy of ``state`` in this node's memory, where there is room for it."""
        try:
            is_kept = self.checkpointer.keep(state)
        except CheckpointError as error:
            is_kept = False
            log.error("this state can't be kept in memory: %s", error)
        refusal = self.checkpointer.refusal
        if not is_kept and refusal and refusal != self._spare_refusal:
            self._spare_refusal = refusal
            self._events.emit("decision", flush=True, what="no copy in the nodes' memory between saves", why=refusal)

    def save_before_leaving(self, state: TrainState | ArrayState, deadline: float) -> None:
        """The emergency save: a new one, or where that won't fit, the one in flight. Failures are in the events."""
        if self.begun_step == state.step:
            self.checkpointer.settle(self._timeout_s(deadline))
            if self._page.saved_step == state.step:
                why = f"the save of this very step, {state.step}, is durable"
                self._tell(Choice(act=Act.FINISH, why=why, predicted_s=None))
                return
        try:
            if self._choose(state, deadline) is Act.FINISH and self._finished(deadline):
                return
            self.save(state, Reason.NOTICE, deadline=deadline, waits=True)
        except CheckpointError as error:
            log.error("the emergency checkpoint at step %d failed: %s", state.step, error)

    def settle(self) -> None:
        """Wait for the save in flight."""
        self.checkpointer.settle()

    def close(self, *, is_clean: bool) -> None:
        """The worker leaves. A save in flight is seen through, for a while only where the training is not done."""
        self._workplace.close_checkpointer(None if is_clean else LEAVE_S)

    def _in_foreground(self, step: int, reason: str) -> bool:
        """Whether training waits for the whole of this save."""
        return False

    def _choose(self, state: TrainState | ArrayState, deadline: float) -> Act:
        """The first rank's decision, the same on every rank."""
        if not self._workplace.config.is_async:
            self._tell(Choice(act=Act.SAVE, why="saves are made in the foreground", predicted_s=None))
            return Act.SAVE
        since = self._page.saved_mono
        saving = self.checkpointer.in_flight
        if saving is not None and not self._past:
            # Its own times are what the next one will be like.
            self.checkpointer.settle(self._timeout_s(deadline))
            saving = self.checkpointer.in_flight
        flight = saving and InFlight(step=saving.id.step, elapsed_s=time.monotonic() - saving.staged_at)
        left_s = deadline - time.time() if deadline else None
        choice = choose(
            left_s=left_s, past=self._past, in_flight=flight or None, has_newest=self._page.saved_mono > since
        )
        act = Act(self.checkpointer.agree(f"emergency {state.step}", choice.act, min(left_s or AGREE_S, AGREE_S)))
        self._tell(choice)
        return act

    def _finished(self, deadline: float) -> bool:
        """Whether the save that was in flight is durable, by the first rank's word."""
        # Past the deadline too: there is nothing better to do until the kill comes.
        timeout_s = max(self._timeout_s(deadline), LEAVE_S)
        self.checkpointer.settle(timeout_s)
        return bool(self.checkpointer.agree("finished", self._page.saved_step >= self.begun_step, timeout_s))

    def _tell(self, choice: Choice) -> None:
        if self._workplace.rank != 0:
            return
        what = "emergency checkpoint" if choice.act is Act.SAVE else "no emergency checkpoint"
        log.warning("%s: %s", what, choice.why)
        self._events.emit(
            "decision", flush=True, what=what, why=choice.why, act=choice.act.value, predicted_s=choice.predicted_s
        )

    def _timeout_s(self, deadline: float) -> float:
        timeout_s = self._workplace.save_timeout_s
        return max(min(timeout_s, deadline - time.time()), 1.0) if deadline else timeout_s

    def _note_refusal(self) -> None:
        refusal = self.checkpointer.refusal
        if refusal and refusal != self._refusal:
            log.warning("saving in the foreground: %s", refusal)
            self._events.emit("decision", flush=True, what="save in the foreground", why=refusal)
        self._refusal = refusal

    def _fail(self, step: int, name: str, error: CheckpointError) -> None:
        # The checkpoints before this one stand; the next due save, or the next attempt, goes on from there.
        self._page.writing = 0
        self.failure = error
        self._events.emit("checkpoint", flush=True, step=step, status="failed", reason=name, error=str(error))
        log.error("checkpoint at step %d failed: %s", step, error)

    def _on_end(self, saving: Saving, name: str, outcome: SaveReport | CheckpointError) -> None:
        """In the save's own thread, where it has one."""
        step = saving.id.step
        if isinstance(outcome, CheckpointError):
            self._fail(step, name, outcome)
            return
        page = self._page
        page.saved_step, page.blocked_s = step, outcome.staged_s
        page.saved_mono = time.monotonic()
        page.writing = 0
        self.failure = None
        drained = {}
        if outcome.commit_s:
            self._past.append(
                SaveTimes(
                    stage_s=outcome.staged_s - outcome.waited_s, write_s=outcome.write_s, commit_s=outcome.commit_s
                )
            )
            drained = {
                "drain_s": round(outcome.durable_s - outcome.staged_s, 6),
                "write_s": round(outcome.write_s, 6),
                "commit_s": round(outcome.commit_s, 6),
            }
        self._events.emit(
            "checkpoint",
            flush=True,
            step=step,
            status="durable",
            reason=name,
            blocking_s=round(outcome.staged_s, 6),
            num_bytes=outcome.num_bytes,
            checkpoint=str(outcome.id),
            **drained,
        )
