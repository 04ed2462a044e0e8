"""Runs whose workers stop, wait or are killed by the kernel, on the fake cluster, against the uninterrupted run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration_bench import MAIN, RunBench
from leaving_out import leave_out
from waiting import wait_for

from resilient_launch.job.memory import memory_cgroup

Reference = Callable[[int], str]
STEPS = 250


def test_a_stopped_worker_is_found_and_the_group_is_started_again(bench: RunBench, reference: Reference) -> None:
    bench.submit(
        bench.config("run", ["--slow-from", "50"], nodes=2, workers_per_node=1, checkpoint={"every": "20 steps"})
    )
    bench.wait_step("run", 50)
    pid, node = bench.worker("run", 1)
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
    assert [event["last_cause"] for event in bench.events("run", "resume")] == [None, "hang"]
    assert bench.digest("run") == reference(2)


def _edit_script(bench: RunBench, at_step: str) -> None:
    """Have every worker run ``at_step`` after its step's own work, in the first attempt."""
    script = bench.workdir / "train.py"
    before = "            optimizer.zero_grad(set_to_none=True)\n"
    assert before in script.read_text()
    script.write_text(script.read_text().replace(before, f"            if run.attempt == 0: {at_step}\n{before}"))


def test_a_rank_that_waits_by_itself_is_named_and_a_hang_has_a_budget_of_its_own(
    bench: RunBench, reference: Reference
) -> None:
    _edit_script(bench, "step == 60 and run.rank == 1 and time.sleep(10000)")
    config = bench.config(
        "run",
        ["--steps", str(STEPS)],
        workers_per_node=2,
        checkpoint={"every": "20 steps"},
        restart={"max_worker_restarts": 0, "max_crashes": 1},
        hang={"floor": "3s"},
    )
    bench.submit(config)
    bench.wait("run")
    confirmed = bench.events("run", "hang")[-1]
    assert (confirmed["status"], confirmed["culprit"], confirmed["culprit_node"]) == ("confirmed", 1, "n1")
    assert "train.py" in confirmed["why"] and "others wait in a collective" in confirmed["why"]
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["hang", "finished"]
    assert rows[1]["resume_step"] == 60
    end = json.loads(bench.paths("run").attempt_end(0).read_text())
    assert end["first_rank"] == 1 and "rank 1 on n1" in end["error"] and "stack.txt" in end["error"]
    assert bench.digest("run") == reference(2)


def test_an_evaluation_on_one_rank_alone_is_no_hang(bench: RunBench) -> None:
    at_step = "step == 60 and run.rank == 0 and evaluate(run)"
    _edit_script(bench, at_step)
    script = bench.workdir / "train.py"
    evaluation = "def evaluate(run):\n    with run.phase():\n        time.sleep(6)\n\n\ndef main():"
    script.write_text(script.read_text().replace("def main():", evaluation))
    bench.submit(bench.config("run", ["--steps", "80"], workers_per_node=2, hang={"floor": "4s"}))
    bench.wait("run")
    (row,) = bench.status("run")["attempts"]
    assert (row["cause"], row["torchelastic_restart_count"]) == ("finished", 0)
    assert not bench.events("run", "hang")


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup with a limit that a node agent and a small worker fit in; its cgroup.procs file."""
    own = memory_cgroup()
    leave_out("a memory limit", [] if own else ["a memory cgroup"])
    assert own is not None
    version = own[1]
    # Version 2 lets a cgroup's children limit memory only where that was switched on for them.
    switch = "cgroup.procs" if version == 1 else "cgroup.subtree_control"
    parents = [each for each in (own[0], *own[0].parents) if (each / switch).exists()]
    parent = next((each for each in parents if version == 1 or "memory" in (each / switch).read_text().split()), None)
    leave_out("a memory limit", [] if parent else [f"a parent of {own[0]} that lets its children limit memory"])
    assert parent is not None
    directory = parent / f"rlaunch-run-{os.getpid()}"
    limits = {1: {"memory.limit_in_bytes": 2 << 30}, 2: {"memory.max": 2 << 30, "memory.swap.max": 0}}[version]
    try:
        directory.mkdir()
        for name, limit in limits.items():
            # Without swap in the kernel there is no file for it.
            if name != "memory.swap.max" or (directory / name).exists():
                (directory / name).write_text(str(limit))
    except OSError as error:
        if directory.exists():
            directory.rmdir()
        leave_out("a memory limit", [f"the right to limit memory in {parent} ({error})"])
    yield directory / "cgroup.procs"
    wait_for(lambda: not (directory / "cgroup.procs").read_text(), what="the processes of the cgroup have ended")
    directory.rmdir()


def test_a_worker_that_the_kernel_killed_for_its_memory(limited: Path, tmp_path: Path, reference: Reference) -> None:
    bench = RunBench(tmp_path)
    try:
        _edit_script(bench, "step == 30 and [b'x' * (1 << 20) for _ in range(4096)]")
        keys = {"checkpoint": {"every": "20 steps"}, "restart": {"max_worker_restarts": 0, "max_crashes": 1}}
        config = bench.config("run", ["--steps", str(STEPS)], workers_per_node=2, **keys)
        # The fake cluster's daemon, its nodes and all they start are in the cgroup of the process that starts it.
        submit = [sys.executable, "-c", MAIN, "submit", str(config)]
        command = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(limited), *submit]
        subprocess.run(command, env=bench.env, cwd=bench.workdir, check=True, capture_output=True, timeout=60)
        bench.wait("run")
        assert [row["cause"] for row in bench.status("run")["attempts"]] == ["out_of_memory", "finished"]
        end = json.loads(bench.paths("run").attempt_end(0).read_text())
        assert "killed a process of node n1 at the memory limit" in end["error"]
        assert bench.digest("run") == reference(2)
    finally:
        bench.close()


def test_a_node_that_is_not_fit_ends_the_attempt_before_training(bench: RunBench) -> None:
    config = bench.config(
        "run", nodes=2, restart={"max_crashes": 0}, health={"min_shm": "900T"}, checkpoint={"every": "20 steps"}
    )
    bench.submit(config)
    bench.wait("run", expect=100)
    (row,) = bench.status("run")["attempts"]
    assert (row["cause"], row["end_step"]) == ("node_failure", None)
    end = json.loads(bench.paths("run").attempt_end(0).read_text())
    assert re.search(r"node n[12] is not fit: /dev/shm has \d+ MiB free, \d+ are needed", end["error"])
    assert not bench.logs("run")
