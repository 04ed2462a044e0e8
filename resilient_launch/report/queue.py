"""What Slurm says of many jobs: one question for all of them, and the last answer kept for when none comes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from resilient_launch.cluster.base import JobView, Scheduler
from resilient_launch.core import durable
from resilient_launch.core.errors import RlaunchError

FRESH_S = 2.0
"""An answer so young is used again: several people may be watching."""
BACK_OFF_S = 30.0
"""How long Slurm is left alone after it did not answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What Slurm said at ``at_s`` (wall clock). ``silence`` is why there is nothing newer, empty where there is."""

    views: dict[str, JobView]
    at_s: float
    silence: str = ""


def ask(scheduler: Scheduler, job_ids: Sequence[str], cache: Path, *, now: float | None = None) -> Answer:
    """Ask once for all of ``job_ids``, or take the answer kept in ``cache`` where it is fresh or Slurm is silent.

    A cache that cannot be read or written is done without.
    """
    now = time.time() if now is None else now
    kept, failed_at_s, failure = _read(cache)
    if kept is not None and now - kept.at_s < FRESH_S and set(job_ids) <= kept.views.keys():
        return kept
    if failure and now - failed_at_s < BACK_OFF_S:
        return Answer(views=kept.views if kept else {}, at_s=kept.at_s if kept else 0.0, silence=failure)
    try:
        views = scheduler.queue(job_ids)
    except RlaunchError as error:
        silence = error.why or error.what
        _write(cache, kept, now, silence)
        return Answer(views=kept.views if kept else {}, at_s=kept.at_s if kept else 0.0, silence=silence)
    answer = Answer(views=views, at_s=now)
    _write(cache, answer, 0.0, "")
    return answer


def _read(cache: Path) -> tuple[Answer | None, float, str]:
    try:
        kept = json.loads(cache.read_bytes())
        views = {job_id: JobView(**view) for job_id, view in kept["views"].items()}
        answer = Answer(views=views, at_s=float(kept["at_s"])) if kept["at_s"] else None
        return answer, float(kept["failed_at_s"]), str(kept["failure"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, 0.0, ""


def _write(cache: Path, answer: Answer | None, failed_at_s: float, failure: str) -> None:
    views = {job_id: asdict(view) for job_id, view in answer.views.items()} if answer else {}
    kept = {"views": views, "at_s": answer.at_s if answer else 0.0, "failed_at_s": failed_at_s, "failure": failure}
    with contextlib.suppress(OSError):
        durable.replace_file(cache, json.dumps(kept).encode())
