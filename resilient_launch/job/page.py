"""The page that one rank and its node agent share: a small memory-mapped file, one word a field.

The rank writes what it does (phase, step, heartbeat), the agent writes what it wants (hold at a step, the agreed word,
a notice). Reading or writing a field costs tens of nanoseconds, so a step loop can afford it every step. Each field has
one writer; the agent writes the fields that explain a word before the word itself.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from enum import IntEnum
from pathlib import Path

from resilient_launch.core.causes import Cause, Notice

_SIZE_BYTES = 512
_CAUSES = tuple(Cause)


class Phase(IntEnum):
    """What a rank is doing, for hang detection and for the report."""

    INIT = 0
    RESTORE = 1
    FIRST_STEP = 2
    STEP = 3
    EVAL = 4
    SAVE = 5
    LEAVE = 6


class Action(IntEnum):
    """What the agreed word asks of every rank at the agreed step."""

    NONE = 0
    SAVE = 1
    SAVE_AND_STOP = 2


class Reason(IntEnum):
    """Why a checkpoint is made."""

    STEPS = 0
    TIME = 1
    NOTICE = 2
    REQUEST = 3
    END = 4


class Outcome(IntEnum):
    """How a rank left; NONE until it does."""

    NONE = 0
    FINISHED = 1
    STOPPED = 2


class _Int:
    def __init__(self, slot: int) -> None:
        self.slot = slot

    def __get__(self, page: Page, owner: type[Page] | None = None) -> int:
        return page.ints[self.slot]

    def __set__(self, page: Page, value: int) -> None:
        page.ints[self.slot] = value


class _Float:
    def __init__(self, slot: int) -> None:
        self.slot = slot

    def __get__(self, page: Page, owner: type[Page] | None = None) -> float:
        return page.floats[self.slot]

    def __set__(self, page: Page, value: float) -> None:
        page.floats[self.slot] = value


def fast_directory() -> str:
    """Where pages go: memory where there is some, because they are touched every step."""
    shared_memory = Path("/dev/shm")
    return str(shared_memory) if os.access(shared_memory, os.W_OK) else tempfile.gettempdir()


class Page:
    """A view of one page: ``create`` makes its file, ``open`` joins it, ``private`` has no file at all."""

    # Written by the rank.
    pid = _Int(1)
    phase = _Int(2)
    step = _Int(3)  # completed steps; -1 until the loop is entered
    resume_step = _Int(4)  # -1 until the state is restored
    outcome = _Int(5)
    saved_step = _Int(6)  # step of the newest durable checkpoint this rank knows of, -1 for none
    beat_mono = _Float(8)  # monotonic clock at the last sign of life
    step_s = _Float(9)  # duration of the last step
    saved_mono = _Float(10)  # monotonic clock when saved_step became durable
    blocked_s = _Float(12)  # how long the save of saved_step kept training waiting; written before saved_mono
    writing = _Int(13)  # 1 while a save of this rank is under way, in the background too
    done_round = _Int(11)  # newest round whose word this rank acts or acted on
    # One slot for each phase: the longest time between two signs of life.
    largest_gap_s = range(32, 32 + len(Phase))
    newest_window = _Int(48)  # newest window of steps with a median of local work; -1 for none
    window_medians_s = range(40, 48)  # its slot is its number modulo their count
    # Written by the agent.
    hold = _Int(16)  # wait for the word on reaching this step; -1 for none
    hold_round = _Int(23)  # the round that `hold` belongs to
    word = _Int(17)  # number of the newest final round
    action = _Int(18)
    reason = _Int(19)
    deadline = _Float(20)  # wall clock by which the agreed save must be durable; 0 for none
    notice_cause = _Int(21)  # 1 + index into Cause; 0 for no notice
    notice_deadline = _Float(22)

    def __init__(self, buffer: mmap.mmap) -> None:
        self._buffer = buffer
        view = memoryview(buffer)
        self.ints = view.cast("q")
        self.floats = view.cast("d")

    @classmethod
    def private(cls) -> Page:
        """A page for a process that is its own agent."""
        page = cls(mmap.mmap(-1, _SIZE_BYTES))
        page._reset()
        return page

    @classmethod
    def create(cls, path: Path) -> Page:
        """Make the file, readable by its owner only, and reset every field. Raises FileExistsError if it is there."""
        path.touch(mode=0o600, exist_ok=False)
        with path.open("r+b") as file:
            file.truncate(_SIZE_BYTES)
            page = cls(mmap.mmap(file.fileno(), _SIZE_BYTES))
        page._reset()
        return page

    @classmethod
    def open(cls, path: Path) -> Page:
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), _SIZE_BYTES))

    def _reset(self) -> None:
        self.step = self.resume_step = self.saved_step = self.hold = self.newest_window = -1
        self.beat_mono = time.monotonic()

    @property
    def has_stepped(self) -> bool:
        """Whether the rank has completed a step since it started."""
        return self.step > max(self.resume_step, 0)

    @property
    def notice(self) -> Notice | None:
        """The notice that stands, if any."""
        code = self.notice_cause
        if not code:
            return None
        return Notice(cause=_CAUSES[code - 1], deadline=self.notice_deadline or None, source="page")

    def set_notice(self, notice: Notice) -> None:
        self.notice_deadline = notice.deadline or 0.0
        self.notice_cause = 1 + _CAUSES.index(notice.cause)
