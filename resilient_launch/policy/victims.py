"""Whom a preemption would cost least: what a run publishes about itself, and the cheapest choice among the runs.

The loss of a run is the seconds since its last durable checkpoint times its GPUs: what would have to be computed again
if it were ended now, without a word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_COMMENT = re.compile(r"rlaunch1 saved=(\d{1,12}) step=(\d{1,12}) gpus=(\d{1,9})(?:\s|$)", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Published:
    """What a job's comment says: when its newest checkpoint became durable (seconds since the epoch), at which step,
    and how many GPUs (workers, where there are none) would compute again."""

    saved_at: int
    step: int
    num_gpus: int


def render_comment(published: Published) -> str:
    """The text for the job's comment field: one line of words that a site's shell script can cut apart."""
    return f"rlaunch1 saved={published.saved_at} step={published.step} gpus={published.num_gpus}"


def parse_comment(comment: str) -> Published | None:
    """What ``render_comment`` wrote; None for any other comment."""
    match = _COMMENT.match(comment)
    if match is None:
        return None
    saved_at, step, num_gpus = (int(group) for group in match.groups())
    return Published(saved_at=saved_at, step=step, num_gpus=num_gpus)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A running job that could be ended: its nodes, and what that would lose in GPU-seconds."""

    name: str
    job_id: str
    num_nodes: int
    loss_gpu_s: float


def loss_gpu_s(published: Published, *, now: float) -> float:
    """GPU-seconds that would be lost at ``now``."""
    return max(now - published.saved_at, 0.0) * published.num_gpus


def choose(candidates: Sequence[Candidate], *, num_nodes: int) -> list[Candidate]:
    """The candidates that free at least ``num_nodes`` for the least loss in all; empty when all together have fewer.

    An exact knapsack: among equal losses, the fewest jobs. Time and memory grow with nodes times candidates.
    """
    if num_nodes < 1 or sum(each.num_nodes for each in candidates) < num_nodes:
        return []
    # best[n]: (loss, number of jobs, their indices as a linked list) of the cheapest choice that frees n nodes or more.
    best: list[tuple[float, int, _Link | None] | None] = [(0.0, 0, None), *[None] * num_nodes]
    for index, each in enumerate(candidates):
        for freed in range(num_nodes, 0, -1):
            before = best[max(freed - each.num_nodes, 0)]
            if before is None:
                continue
            offer = (before[0] + each.loss_gpu_s, before[1] + 1, _Link(index, before[2]))
            standing = best[freed]
            if standing is None or offer[:2] < standing[:2]:
                best[freed] = offer
    found = best[num_nodes]
    assert found is not None
    chosen, link = [], found[2]
    while link is not None:
        chosen.append(candidates[link.index])
        link = link.rest
    return sorted(chosen, key=lambda each: (each.loss_gpu_s, each.job_id))


@dataclass(frozen=True)
class _Link:
    index: int
    rest: _Link | None
