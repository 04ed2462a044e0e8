"""Job arrays: which tasks an ``--array`` value means, and how several of them are written as one."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from resilient_launch.cluster.fake.model import ArrayTask, task_numbers


def read(text: str) -> tuple[list[int], int]:
    """Task numbers in order, and how many may run at once (0 for all). Raises ValueError."""
    pieces, percent, limit = text.partition("%")
    if percent and not limit.isdecimal():
        raise ValueError(f"bad limit {limit!r}")
    return task_numbers(pieces), int(limit or 0)


def tasks(array_id: int, numbers: list[int], limit: int) -> list[ArrayTask]:
    """The tasks of a new array."""
    gaps = {after - before for before, after in itertools.pairwise(numbers)}
    step = gaps.pop() if len(gaps) == 1 else 1
    return [
        ArrayTask(
            array_id=array_id, index=index, count=len(numbers), low=numbers[0], high=numbers[-1], step=step, limit=limit
        )
        for index in numbers
    ]


def write(numbers: Iterable[int], limit: int = 0) -> str:
    """``0-3,7%2``: as squeue shows the tasks that have not started."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"{text}%{limit}" if limit else text
