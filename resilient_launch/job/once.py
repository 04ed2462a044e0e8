"""What must happen once in a run's life although its step is passed again: evaluations, exports, uploads."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from resilient_launch.core import durable
from resilient_launch.core.errors import CheckpointError, UsageError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.branches import Branch, read_branches

if TYPE_CHECKING:
    from torch.distributed import Store

    from resilient_launch.job.workplace import Workplace

WORD_TIMEOUT = timedelta(hours=1)
"""How long a rank waits for the first one's word; a rank that hangs is found by its node's agent long before."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
log = logging.getLogger("rlaunch")


class Done:
    """What is done, in files that outlive every attempt. A mark counts for the lineage that it was made in."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def __contains__(self, key: tuple[int, str]) -> bool:
        step, name = key
        try:
            mark = json.loads(self._paths.once_mark(step, name).read_bytes())
            made_in = int(mark["branch"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return all(step <= branch.step for branch in self._branches()[made_in:])

    def add(self, step: int, name: str, attempt: int) -> None:
        """Write down that it is done. A disk that refuses costs a repetition, and no more."""
        mark = {"attempt": attempt, "branch": len(self._branches()), "done_at": time.time()}
        try:
            self._paths.once.mkdir(exist_ok=True)
            durable.replace_file(self._paths.once_mark(step, name), json.dumps(mark).encode())
        except OSError as error:
            log.warning("can't note that %s of step %d is done: %s", name, step, error)

    def _branches(self) -> list[Branch]:
        with contextlib.suppress(CheckpointError):
            return read_branches(self._paths)
        return []


class Once:
    """Decides on the first rank, and tells the others, so that all of them do it or none."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self._done = Done(workplace.paths)
        self._num_asked: dict[tuple[int, str], int] = {}
        self._store: Store | None = None

    @contextlib.contextmanager
    def block(self, step: int, name: str, *, is_cut_short: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Whether it is due; done once the block ends without an exception, and ``is_cut_short`` says no then."""
        if step < 0 or not _NAME.fullmatch(name):
            raise UsageError(
                f"once for {name!r} at step {step}",
                why="a name is up to 80 letters, digits, dots, dashes and underscores, a step not negative",
                hint="run.once(step, 'eval')",
            )
        is_due = self._ask(step, name)
        if not is_due:
            yield False
            return
        before = _random_state()
        try:
            yield True
        finally:
            _set_random_state(before)
        if self._workplace.rank == 0 and not is_cut_short():
            self._done.add(step, name, self._workplace.attempt)

    def _ask(self, step: int, name: str) -> bool:
        workplace = self._workplace
        if workplace.world_size == 1:
            return (step, name) not in self._done
        if self._store is None:
            self._store = workplace.connect()
        number = self._num_asked[step, name] = self._num_asked.get((step, name), 0) + 1
        key = f"once/{step}/{name}/{number}"
        if workplace.rank == 0:
            is_due = (step, name) not in self._done
            self._store.set(key, "due" if is_due else "done")
            return is_due
        self._store.wait([key], WORD_TIMEOUT)
        return bytes(self._store.get(key)) == b"due"


def _random_state() -> dict[str, Any]:
    """The process's generators, so that training draws the same numbers whether or not the block ran."""
    if "torch" in sys.modules:
        from resilient_launch.checkpoint.rng import RandomPart

        return {"all": RandomPart().get()}
    numpy = sys.modules.get("numpy")
    return {"python": random.getstate(), "numpy": numpy.random.get_state() if numpy else None}


def _set_random_state(state: dict[str, Any]) -> None:
    if "all" in state:
        from resilient_launch.checkpoint.rng import RandomPart

        RandomPart().put(state["all"], strict=False)
        return
    random.setstate(state["python"])
    if state["numpy"] is not None:
        sys.modules["numpy"].random.set_state(state["numpy"])
