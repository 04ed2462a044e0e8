"""A workload from its YAML file, with the same strictness and the same kind of messages as a run's configuration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from resilient_launch.config import values as v
from resilient_launch.config.cursor import Cursor, Field, Fields, Report, read_fields
from resilient_launch.config.issues import ConfigErrors, ConfigIssue, Mark
from resilient_launch.config.yamlpos import MAX_BYTES, decode_bytes, parse
from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import check_run_name
from resilient_launch.core.units import parse_size
from resilient_launch.lab.cluster_sim.workload import JobClass, Workload


def _name(cursor: Cursor) -> str:
    return check_run_name(v.word(cursor))


def _size(cursor: Cursor) -> int:
    num_bytes = parse_size(cursor.scalar("a size", "40G").text)
    if num_bytes < 1:
        raise UsageError("size 0", why="must be more than nothing", hint="40G")
    return num_bytes


_JOB: Fields = {
    "name": Field("name", _name),
    "count": Field("count", v.integer(1, 1000)),
    "nodes": Field("nodes", v.integer(1, 10_000_000)),
    "checkpoint": Field("num_bytes", _size),
    "write": Field("write_s", v.duration()),
}


def _jobs(cursor: Cursor) -> list[tuple[Cursor, dict[str, Any]]]:
    example = "[{name: big, count: 8, nodes: 1024, checkpoint: 50T}]"
    found = []
    for item in cursor.items("a list of job classes", example):
        found += [(item, values) for values in item.read(lambda each: read_fields(each, _JOB))]
    if not found and cursor.report.is_good(cursor.key):
        raise UsageError("no jobs", why="there must be one class at least", hint=example)
    return found


_TOP: Fields = {
    "name": Field("name", _name),
    "nodes": Field("nodes", v.integer(1, 10_000_000)),
    "system_mtbf": Field("system_mtbf_s", v.duration(1)),
    "bandwidth": Field("bandwidth", _size),
    "writers": Field("writers", v.integer(1, 1000)),
    "jobs": Field("jobs", _jobs),
}


def read_workload(path: Path) -> Workload:
    """The workload in ``path``. Raises ConfigErrors with all that is wrong, UsageError without a file."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise UsageError("workload", where=str(path), why=why, hint="the path of a YAML file") from None
    issues: list[ConfigIssue] = []
    source = decode_bytes(data, str(path))
    root, found = parse(source)
    issues += found
    report = Report(root.mark if root is not None else Mark(source, 1, 1), issues)
    if root is None:
        report.add(("jobs",), "no jobs", why="the file is empty", hint="jobs: [{name: big, count: 8, nodes: 1024, …}]")
    for values in Cursor(root, "", report).read(lambda each: read_fields(each, _TOP)) if root is not None else ():
        workload = _build(values, path.stem, report)
        if workload is not None and not report.issues:
            return workload
    raise ConfigErrors(sorted(report.issues, key=lambda issue: (issue.line is None, issue.line, issue.column)))


def _build(values: dict[str, Any], stem: str, report: Report) -> Workload | None:
    for key, attr, hint in (
        ("nodes", "nodes", "nodes: 1024"),
        ("system_mtbf", "system_mtbf_s", "system_mtbf: 3h"),
        ("jobs", "jobs", "jobs: […]"),
    ):
        if attr not in values and report.is_good(key):
            report.add((key,), f"no {key}", why="a workload has it", hint=hint)
    classes = [_class(cursor, job, values.get("bandwidth"), report) for cursor, job in values.get("jobs", [])]
    used = sum(job.count * job.nodes for job in classes)
    if not report.issues and used > values["nodes"]:
        report.add(("nodes",), f"{values['nodes']} nodes", why=f"the jobs use {used}", hint=f"nodes: {used}")
    if report.issues:
        return None
    return Workload(
        name=values.get("name", stem),
        nodes=values["nodes"],
        system_mtbf_s=values["system_mtbf_s"],
        writers=values.get("writers", 1),
        classes=tuple(classes),
    )


def _class(cursor: Cursor, job: dict[str, Any], bandwidth: int | None, report: Report) -> JobClass:
    def refuse(what: str, why: str, hint: str) -> None:
        if report.is_good(cursor.key):
            report.add((cursor.key,), what, why=why, hint=hint)

    if "nodes" not in job:
        refuse("no nodes", "a job runs on some", "nodes: 64")
    given = "num_bytes" in job, "write_s" in job
    if given == (True, True):
        refuse("checkpoint and write", "one follows from the other", "checkpoint: …, or write: …")
    elif given == (False, False):
        refuse("no checkpoint", "a job writes some", "checkpoint: 2T, or write: 5m")
    elif given[0] and bandwidth is None:
        refuse("checkpoint", "needs the storage's speed to become a time", "bandwidth: 40G (a second), at the top")
    write_s = job.get("write_s", math.nan)
    if "num_bytes" in job and bandwidth:
        write_s = job["num_bytes"] / bandwidth
    return JobClass(name=job.get("name", "job"), count=job.get("count", 1), nodes=job.get("nodes", 1), write_s=write_s)
