"""Runs whose workers stop, wait or are killed by the kernel, on the fake cluster, against the uninterrupted run."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from integration_bench import RunBench, marked, wait_for

Reference = Callable[[int], str]
STEPS = 250


def _worker(bench: RunBench, rank: int) -> tuple[int, str]:
    """The process of a rank, and its node."""

    def find() -> list[tuple[int, str]]:
        found = []
        for pid in set(marked(str(bench.fake.state_dir))) & set(marked(f"\0RANK={rank}\0")):
            words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            if "train.py" in Path(f"/proc/{pid}/cmdline").read_text():
                found.append((pid, next(word for word in words if word.startswith("RLAUNCH_NODE=")).split("=")[1]))
        return sorted(found)

    return wait_for(find, what=f"worker {rank}")[0]


def test_a_stopped_worker_is_found_and_the_group_is_started_again(bench: RunBench, reference: Reference) -> None:
    bench.submit(
        bench.config("run", ["--steps", str(STEPS)], nodes=2, workers_per_node=1, checkpoint={"every": "20 steps"})
    )
    bench.wait_step("run", 50)
    pid, node = _worker(bench, 1)
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time.time()
    bench.wait("run")
    found, confirmed = bench.events("run", "hang")
    # Its own figures say what it was allowed; nothing in this run stands still for 2 s otherwise.
    assert found["status"] == "found" and confirmed["status"] == "confirmed"
    assert (confirmed["culprit"], confirmed["culprit_node"]) == (1, node) and "state T" in confirmed["why"]
    assert found["timeout_s"] >= 10.0 and found["t"] - stopped_at < found["timeout_s"] + 2.0
    logs = bench.paths("run").attempt_logs(0)
    assert "state T (stopped)" in (logs / f"{node}.1.stack.txt").read_text()
    assert re.search(r'File ".*train.py", line \d+ in main', next(logs.glob("n*.0.stack.txt")).read_text())
    ends = bench.events("run", "group_end")
    assert {event["cause"] for event in ends if event["restart"] == 0} == {"hang"}
    # All stacks were there before anything was killed.
    assert confirmed["t"] <= min(event["t"] for event in ends if event["restart"] == 0)
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["finished"]
    assert bench.digest("run") == reference(2)
