"""submitit itself, unpatched: submission, states, results, arrays, an interruption and a cancel."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from slurm_bench import Bench

FUNCTIONS = """
import os, time
import submitit
from submitit.core.job_environment import JobEnvironment

def add(a, b):
    here = JobEnvironment()
    return {"sum": a + b, "rank": here.global_rank, "tasks": here.num_tasks, "hosts": here.hostnames}

def fail():
    raise ValueError("on purpose")

class Trainer:
    def __call__(self, start):
        open("ready", "a").write("x")
        if start:
            return start
        time.sleep(120)
    def checkpoint(self, start):
        return submitit.helpers.DelayedSubmission(self, 42)

def executor(**parameters):
    made = submitit.SlurmExecutor(folder="logs/%j", max_num_timeout=2)
    made.update_parameters(time=5, mem="64M", **parameters)
    return made

def state(job, *wanted):
    deadline = time.monotonic() + 60
    while (found := job.watcher.get_state(job.job_id, mode="force")).split(" ")[0] not in wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found
"""


def _run(bench: Bench, body: str) -> list[str]:
    """What a program with this body prints; its jobs are cancelled with the test's."""
    (bench.directory / "functions.py").write_text(FUNCTIONS)
    main = bench.directory / "main.py"
    main.write_text("from functions import *\n" + textwrap.dedent(body))
    environment = {**bench.env, "PYTHONPATH": str(bench.directory)}
    done = subprocess.run(
        [sys.executable, main], env=environment, cwd=bench.directory, capture_output=True, text=True, timeout=240
    )
    bench.jobs += [path.name for path in (bench.directory / "logs").glob("*") if path.name.isdigit()]
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_submitit_brings_back_the_result_of_every_task(books_bench: Bench) -> None:
    lines = _run(
        books_bench,
        """
        job = executor(nodes=2, ntasks_per_node=1, job_name="it's a name").submit(add, 2, b=3)
        for result in job.results():
            print(result["sum"], result["rank"], result["tasks"], len(result["hosts"]))
        print(state(job, "COMPLETED"))
        """,
    )
    assert lines == ["5 0 2 2", "5 1 2 2", "COMPLETED"]


def test_submitit_brings_back_an_exception(books_bench: Bench) -> None:
    lines = _run(
        books_bench,
        """
        job = executor().submit(fail)
        print("on purpose" in str(job.exception()))
        print(state(job, "COMPLETED", "FAILED"))
        """,
    )
    assert lines == ["True", "FAILED"]


def test_submitit_requeues_what_is_interrupted(books_bench: Bench) -> None:
    lines = _run(
        books_bench,
        """
        job = executor(signal_delay_s=30).submit(Trainer(), 0)
        while not os.path.exists("ready"):
            time.sleep(0.05)
        job._interrupt(timeout=True)
        print(job.job_id)
        print(job.result())
        print(state(job, "COMPLETED"))
        """,
    )
    job_id, *rest = lines
    assert rest == ["42", "COMPLETED"]
    assert [row.state for row in books_bench.slurm.history(job_id)] == ["REQUEUED", "COMPLETED"]


def test_submitit_cancels(books_bench: Bench) -> None:
    lines = _run(
        books_bench,
        """
        job = executor().submit(Trainer(), 0)
        while not os.path.exists("ready"):
            time.sleep(0.05)
        job.cancel(check=True)
        print(state(job, "CANCELLED"))
        """,
    )
    assert lines == ["CANCELLED by 0"]


def test_submitit_maps_over_an_array(books_bench: Bench) -> None:
    lines = _run(
        books_bench,
        """
        made = executor()
        made.update_parameters(array_parallelism=2)
        jobs = made.map_array(add, [1, 2, 3], [10, 20, 30])
        print([job.result()["sum"] for job in jobs])
        print([job.job_id.partition("_")[2] for job in jobs])
        print([state(job, "COMPLETED") for job in jobs])
        """,
    )
    assert lines == ["[11, 22, 33]", "['0', '1', '2']", "['COMPLETED', 'COMPLETED', 'COMPLETED']"]
