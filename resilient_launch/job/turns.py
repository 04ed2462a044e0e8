"""Turns at shared storage for the saves that nobody is in a hurry for: when the first node's agent may ask for one.

Training goes on while a turn is awaited, and the newest step is saved when it comes. Nothing here may keep a save from
being made: without a turn after ``max_wait``, or with a directory that cannot be used, the save is made all the same.
Saves upon a notice, at the end and at the script's own request never come here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol

from resilient_launch.config.schema import LaunchConfig, StaggerConfig
from resilient_launch.core.events import EventWriter
from resilient_launch.core.ids import CheckpointId
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.context import Allocation
from resilient_launch.job.page import Page, Phase
from resilient_launch.job.site_history import prior_rate
from resilient_launch.policy import stagger
from resilient_launch.policy.stagger import Sharer, Want, WriteSample
from resilient_launch.stagger.group import Group, View
from resilient_launch.stagger.tickets import Member
from resilient_launch.stagger.turn import Turn, TurnState

FIRST_WRITE_S = 60.0
"""What a write is taken to last before one was measured."""
NEWEST_WEIGHT = 0.3
"""Weight of the newest write in the running mean of their durations."""
GRACE_S = 60.0
"""How much longer than its own time limit a save may keep its turn."""
BEGIN_TIMEOUT_S = 120.0
"""How long the ranks may take to agree on a step and to get there; ten steps, where those are longer."""
NO_ANSWER_S = 60.0
"""How long a save that is due waits, at most, for a directory that cannot be used, or has not answered once."""
HANG_S = 10.0
"""How long a turn that was given back may take to be gone before its directory is taken to hang."""
log = logging.getLogger("rlaunch.agent")


class Turns(Protocol):
    """Stands between a save that is due and the request for it."""

    def group_started(self, pages: Sequence[Page]) -> None:
        """A worker group starts, and restores its state."""

    def may_ask(
        self,
        now: float,
        *,
        is_due: bool,
        age_s: float,
        period_s: float,
        pages: Sequence[Page],
        mtbf_s: float | None = None,
    ) -> bool:
        """Whether to ask for a save now. Called at every tick; ``age_s`` is the time since the last save.

        ``mtbf_s`` is the job's mean time between failures as it was measured, None where it was not.
        """

    def close(self) -> None:
        """The attempt ends."""


class Unshared:
    """No group: a save that is due is asked for."""

    def group_started(self, pages: Sequence[Page]) -> None:
        pass

    def may_ask(
        self,
        now: float,
        *,
        is_due: bool,
        age_s: float,
        period_s: float,
        pages: Sequence[Page],
        mtbf_s: float | None = None,
    ) -> bool:
        return is_due

    def close(self) -> None:
        pass


class _Stage(StrEnum):
    IDLE = "idle"
    WAITING = "waiting"
    SAVING = "saving"


class SharedTurns:
    """Takes a ticket for each save that is due, or nearly due.

    ``emit_decision`` gets (what, why, further fields). ``stretches`` lets periods grow to what is best for the group
    as a whole; an interval that the user wrote down stays as it is.
    """

    def __init__(
        self,
        config: StaggerConfig,
        paths: RunPaths,
        *,
        job_id: str,
        weight: float,
        mtbf_s: float,
        save_timeout_s: float,
        stretches: bool,
        emit_decision: Callable[..., None],
    ) -> None:
        self._config, self._paths, self._job_id = config, paths, job_id
        self._weight, self._mtbf_s, self._save_timeout_s = weight, mtbf_s, save_timeout_s
        self._stretches, self._emit = stretches, emit_decision
        self._stage = _Stage.IDLE
        self._turn: Turn | None = None
        self._restore: Turn | None = None
        self._now = self._since = self._released_at = 0.0
        self._due_at = 0.0
        self._write_began = 0.0
        self._write_s: float | None = None
        self._period_s = 0.0
        self._samples: list[WriteSample] = []
        self._members: tuple[Member, ...] = ()

    def group_started(self, pages: Sequence[Page]) -> None:
        self._end_turn()
        if self._restore is not None:
            self._restore.release()
        # A restore never waits: the whole gang stands still for it. As a holder it keeps savers from starting.
        self._restore = self._start_turn("restore", age_s=0.0, period_s=0.0)

    def may_ask(
        self,
        now: float,
        *,
        is_due: bool,
        age_s: float,
        period_s: float,
        pages: Sequence[Page],
        mtbf_s: float | None = None,
    ) -> bool:
        self._now = now
        self._mtbf_s = self._mtbf_s if mtbf_s is None else mtbf_s
        if self._restore is not None and all(page.resume_step >= 0 for page in pages):
            self._restore.release()
            self._restore = None
        match self._stage:
            case _Stage.IDLE:
                return self._apply_if_due(now, is_due, age_s, period_s)
            case _Stage.WAITING:
                return self._wait(now, is_due, pages)
            case _Stage.SAVING:
                self._watch(now, pages)
        return False

    def close(self) -> None:
        self._end_turn()
        if self._restore is not None:
            self._restore.release()

    # The stages of one save.

    def _apply_if_due(self, now: float, is_due: bool, age_s: float, period_s: float) -> bool:
        if period_s <= 0:
            # No step is done yet, so that nobody knows how long a number of steps takes.
            return False
        stretched_s = self._stretched_s(period_s)
        # What is due before its plain period is over has a deadline of its own, which no group moves.
        is_due = is_due and (age_s < period_s or age_s >= stretched_s)
        if not (is_due or stagger.is_due(age_s, stretched_s, self._early_share())):
            return False
        self._since, self._due_at, self._period_s = now, 0.0, stretched_s
        if self._turn is not None and self._turn.is_alive():
            # The directory hangs, it seems, and the last turn's thread with it: no second one is sent after it.
            is_hanging = now - self._released_at > HANG_S
            return is_due and is_hanging and self._go(now, "without a turn: the group's directory does not answer")
        self._turn = self._start_turn("save", age_s=age_s, period_s=stretched_s)
        self._stage = _Stage.WAITING
        return False

    def _wait(self, now: float, is_due: bool, pages: Sequence[Page]) -> bool:
        turn = self._turn
        assert turn is not None
        if max((page.saved_mono for page in pages), default=0.0) > self._since:
            # Saved meanwhile for another reason.
            self._end_turn()
            return False
        if turn.granted.is_set():
            view = turn.view
            writers = f"writer {turn.num_beside} of {view.writers}" if view else "writing"
            return self._go(now, f"its turn came after {now - self._since:.1f} s: {writers}")
        if not is_due:
            return False
        self._due_at = self._due_at or now
        waited_s = now - self._due_at
        if waited_s >= self._config.max_wait_s:
            problem = turn.problem or "others were ahead"
            return self._go(now, f"no turn came within {self._config.max_wait_s:.0f} s ({problem})")
        if waited_s >= NO_ANSWER_S and (turn.problem or turn.view is None):
            return self._go(now, f"without a turn at {self._config.group}: {turn.problem or 'no answer'}")
        return False

    def _go(self, now: float, why: str) -> bool:
        self._emit("save", why, waited_s=round(now - self._since, 3), period_s=round(self._period_s, 3))
        self._stage, self._since, self._write_began = _Stage.SAVING, now, 0.0
        return True

    def _watch(self, now: float, pages: Sequence[Page]) -> None:
        """Give the turn back when the pages show the save durable, failed, or never begun."""
        is_writing = any(page.phase == Phase.SAVE or page.writing for page in pages)
        if is_writing and not self._write_began:
            self._write_began = now
        if min((page.saved_mono for page in pages), default=0.0) > self._since:
            self._on_durable(max(page.saved_mono for page in pages), max(page.saved_step for page in pages))
        elif self._write_began:
            if not is_writing or now - self._write_began > self._save_timeout_s + GRACE_S:
                self._end_turn()
        elif now - self._since > max(BEGIN_TIMEOUT_S, 10 * max(page.step_s for page in pages)):
            # The ranks could not agree; the save will be due again.
            self._end_turn()

    def _on_durable(self, saved_mono: float, step: int) -> None:
        seconds = max(saved_mono - (self._write_began or self._since), 0.001)
        known = self._write_s
        self._write_s = seconds if known is None else known + NEWEST_WEIGHT * (seconds - known)
        turn = self._turn
        # A save beside others than the ones that were counted says nothing about their number.
        if turn is not None and turn.state is TurnState.GRANTED:
            num_bytes = self._num_bytes(step)
            if num_bytes:
                self._samples.append(WriteSample(num_writers=turn.num_beside, seconds=seconds, num_bytes=num_bytes))
                del self._samples[:-16]
        self._end_turn(
            Member(
                run=str(self._paths.directory),
                weight=self._weight,
                write_s=self._write_s,
                mtbf_s=self._mtbf_s,
                period_s=max(self._period_s, 0.001),
                samples=tuple(self._samples),
            )
        )

    def _num_bytes(self, step: int) -> int:
        """Bytes of the newest checkpoint of ``step``; 0 when it cannot be seen."""
        try:
            found = [
                (known, path)
                for path in self._paths.checkpoints.iterdir()
                if (known := CheckpointId.parse(path.name)) is not None and known.step == step
            ]
            return sum(file.lstat().st_size for file in max(found)[1].iterdir()) if found else 0
        except OSError:
            return 0

    def _start_turn(self, kind: stagger.Kind, *, age_s: float, period_s: float) -> Turn:
        want = Want(
            id="",
            kind=kind,
            weight=self._weight,
            write_s=self._write_s or FIRST_WRITE_S,
            mtbf_s=self._mtbf_s,
            age_s=age_s,
            period_s=period_s,
            arrived=0.0,
        )
        assert self._config.group is not None
        turn = Turn(
            # A client of its own: the thread may hang in it for ever.
            Group(self._config.group, writers=self._config.writers),
            str(self._paths.directory),
            want,
            job_id=self._job_id,
            place="hold" if kind == "restore" else "wait",
        )
        turn.start()
        return turn

    def _end_turn(self, member: Member | None = None) -> None:
        if self._turn is not None:
            view: View | None = self._turn.view
            self._members = view.members if view is not None else self._members
            self._turn.release(member)
        self._stage, self._released_at = _Stage.IDLE, self._now

    # What the group as a whole wants.

    def _sharers(self) -> list[Sharer]:
        """This run, and the others that it knows of."""
        mine = Sharer(weight=self._weight, write_s=self._write_s or FIRST_WRITE_S, mtbf_s=self._mtbf_s)
        others = [each for each in self._members if each.run != str(self._paths.directory)]
        return [
            mine,
            *(Sharer(weight=each.weight, write_s=each.write_s, mtbf_s=each.mtbf_s) for each in others),
        ]

    def _early_share(self) -> float:
        return stagger.early_share(stagger.solo_load(self._sharers()))

    def _stretched_s(self, period_s: float) -> float:
        if not self._stretches or self._write_s is None:
            return period_s
        sharers = self._sharers()
        joint_s = stagger.joint_periods_s(sharers)[0]
        return period_s * max(joint_s / stagger.young_period_s(sharers[0].write_s, sharers[0].mtbf_s), 1.0)


def turns_for(config: LaunchConfig, paths: RunPaths, allocation: Allocation, events: EventWriter) -> Turns:
    """What the configuration asks for; the first node's agent alone takes turns."""
    if config.stagger.group is None or not allocation.is_first:
        return Unshared()
    every = config.checkpoint.every

    def emit(what: str, why: str, **fields: object) -> None:
        log.info("%s: %s", what, why)
        events.emit("decision", flush=True, what=what, why=why, **fields)

    return SharedTurns(
        config.stagger,
        paths,
        job_id=allocation.job_id,
        weight=float(allocation.num_nodes * max(config.gpus_per_node, 1)),
        mtbf_s=prior_rate(config.checkpoint, paths, allocation.num_nodes).mtbf_s,
        save_timeout_s=config.checkpoint.save_timeout_s,
        stretches=every.seconds is None and every.steps is None,
        emit_decision=emit,
    )
