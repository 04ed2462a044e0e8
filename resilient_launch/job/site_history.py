"""A file that all runs of a site may feed and learn from: how long nodes were held, and which ends a node can cause.

One JSON object a line, appended in one write. Nothing rests on it: what cannot be read or written is done without.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resilient_launch.config.schema import CheckpointConfig
from resilient_launch.core.causes import Cause
from resilient_launch.core.paths import RunPaths
from resilient_launch.core.units import DAY_S
from resilient_launch.job.attempt import Attempt, AttemptRecord
from resilient_launch.job.interval_history import last_sign_of_life
from resilient_launch.policy.failure_rate import FAILURES_PER_1000_NODE_DAYS, Rate, job_prior, nodes_rate

VERSION = 1
NODE_CAUSES = frozenset({Cause.NODE_FAILURE, Cause.HANG})
"""Ends that tell of nodes; preemptions tell of the queue, and crashes mostly of the code."""
MAX_BYTES = 8 << 20
"""So much of the end of the file is read: about 80,000 attempts."""
MAX_AGE_S = 180 * DAY_S
"""Older machines were others."""
_MOST_NODES, _MOST_S = 1_000_000, 400 * DAY_S
log = logging.getLogger("rlaunch.agent")


def note_attempt(path: Path, paths: RunPaths, attempt: Attempt, record: AttemptRecord) -> None:
    """Add one attempt that ended. Raises nothing."""
    # A silent end is written down by the next attempt; the time in the queue before that is no exposure.
    ended_at = min(record.ended_at, last_sign_of_life(paths, attempt) or record.ended_at)
    line = {
        "v": VERSION,
        "run": _run_id(paths),
        "attempt": attempt.number,
        "nodes": len(attempt.nodes),
        "seconds": round(max(ended_at - attempt.claimed_at, 0.0), 1),
        "cause": record.cause,
        "at": round(ended_at),
    }
    try:
        # A link would lead the write elsewhere, and a pipe would hold it up.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(path, flags, 0o664)
        try:
            os.write(fd, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        log.warning("the site's failure history %s gets no line: %s", path, error)


def prior_rate(checkpoint: CheckpointConfig, paths: RunPaths, num_nodes: int) -> Rate:
    """How often a run on ``num_nodes`` nodes is believed to fail before it has shown better."""
    per_1000_node_days = checkpoint.failures_per_1000_node_days
    if checkpoint.failure_history is None:
        return job_prior(nodes_rate(0, 0.0, prior=per_1000_node_days), num_nodes)
    return job_prior(node_rate(checkpoint.failure_history, paths, per_1000_node_days), num_nodes)


def node_rate(path: Path, paths: RunPaths, prior: float = FAILURES_PER_1000_NODE_DAYS) -> Rate:
    """What other runs' attempts say of a node, on top of ``prior`` failures per 1000 node-days."""
    num_failures, node_s = 0, 0.0
    own, seen = _run_id(paths), set()
    for line in _lines(path):
        key = (line["run"], line["attempt"])
        if key in seen or line["run"] == own or time.time() - line["at"] > MAX_AGE_S:
            continue
        seen.add(key)
        num_failures += line["cause"] in NODE_CAUSES
        node_s += line["nodes"] * line["seconds"]
    return nodes_rate(num_failures, node_s, prior=prior)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        log.info("the site's failure history %s is not read: %s", path, error)
        return
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return
        file.seek(max(status.st_size - MAX_BYTES, 0))
        for text in file.read(MAX_BYTES).splitlines():
            try:
                line = json.loads(text)
                good = line["v"] == VERSION and isinstance(line["run"], str) and type(line["attempt"]) is int
                good = good and 0 < line["nodes"] <= _MOST_NODES and 0 <= line["seconds"] <= _MOST_S
                if good and isinstance(line["cause"], str) and line["at"] >= 0:
                    yield line
            except (ValueError, KeyError, TypeError, RecursionError):
                continue


def _run_id(paths: RunPaths) -> str:
    try:
        return str(json.loads(paths.run.read_bytes())["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return paths.name
