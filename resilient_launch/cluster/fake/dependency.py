"""What a job waits for: ``--dependency`` as text that says how each part stands. No clock and no I/O.

A part that is met goes away, one that can never be met stays failed: neither changes again when the job that it names
is queued anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from resilient_launch.cluster.fake.model import Job, JobState

WAITS = "Dependency"
NEVER = "DependencyNeverSatisfied"
_KINDS = ("after", "afterany", "afterok", "afternotok", "aftercorr", "afterburstbuffer")
_PART = re.compile(rf"(?P<kind>{'|'.join(_KINDS)}):(?P<id>\d+(?:_\d+)?)(?:\+\d+)?")
_SHOWN = re.compile(r"(?P<kind>\w+)(?::(?P<id>[\d_*]+))?\((?P<status>\w+)\)")

Find = Callable[[str], Sequence[Job]]
"""The jobs that an id means: one, every task of an array, or none."""


def read(text: str, find: Find, *, must_exist: bool) -> str:
    """``text`` as submitted, each part unfulfilled. Raises ValueError for what is no dependency, or names no job.

    Slurm 22.05 takes ``afterok`` of a job that it does not know for met; 24.11 refuses it (``must_exist``).
    """
    shown = []
    for clause in filter(None, re.split("[,?]", text)):
        kind, *ids = clause.split(":")
        if kind == "singleton" and not ids:
            shown.append("singleton(unfulfilled)")
            continue
        if not ids or not all(_PART.fullmatch(f"{kind}:{each}") for each in ids):
            raise ValueError(f"bad dependency {clause!r}")
        for each in (word.partition("+")[0] for word in ids):
            jobs = find(each)
            if not jobs and must_exist:
                raise ValueError(f"unknown job {each}")
            if jobs:
                whole_array = jobs[0].array is not None and "_" not in each
                shown.append(f"{kind}:{each}{'_*' if whole_array else ''}(unfulfilled)")
    return ("?" if "?" in text else ",").join(shown)


def resolve(job: Job, find: Find, has_namesake: Callable[[Job], bool]) -> tuple[str, str]:
    """How the job's dependency stands now, and Slurm's reason for waiting; both empty when it may start."""
    either = "?" in job.dependency
    left, failed = [], 0
    for match in _SHOWN.finditer(job.dependency):
        status = match["status"] if match["status"] == "failed" else _status(job, match, find, has_namesake)
        if status == "met" and either:
            return "", ""
        if status != "met":
            left.append(f"{match['kind']}{':' + match['id'] if match['id'] else ''}({status})")
            failed += status == "failed"
    if not left:
        return "", ""
    is_hopeless = failed == len(left) if either else failed > 0
    return ("?" if either else ",").join(left), NEVER if is_hopeless else WAITS


def _status(job: Job, part: re.Match[str], find: Find, has_namesake: Callable[[Job], bool]) -> str:
    kind = part["kind"]
    if kind == "singleton":
        return "unfulfilled" if has_namesake(job) else "met"
    others = find(part["id"].removesuffix("_*"))
    if kind == "aftercorr" and job.array is not None:
        others = [other for other in others if other.array is not None and other.array.index == job.array.index]
    if kind == "after":
        return "met" if all(other.start or other.is_over for other in others) else "unfulfilled"
    if not all(other.is_over for other in others):
        return "unfulfilled"
    succeeded = all(other.state is JobState.COMPLETED for other in others)
    if kind in ("afterok", "aftercorr"):
        return "met" if succeeded else "failed"
    if kind == "afternotok":
        return "failed" if succeeded else "met"
    return "met"
