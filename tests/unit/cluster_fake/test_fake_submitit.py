"""submitit, unpatched, on the fake's commands."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from fake_lab import Lab

FUNCTIONS = """
import os, sys, time
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
    made.update_parameters(time=5, **parameters)
    return made
"""


def script(lab: Lab, body: str) -> str:
    (lab.work / "functions.py").write_text(FUNCTIONS)
    main = lab.work / "main.py"
    main.write_text("from functions import *\n" + textwrap.dedent(body))
    environment = {**os.environ, **lab.cluster.env(), "PYTHONPATH": str(lab.work)}
    done = subprocess.run(
        [sys.executable, main], env=environment, cwd=lab.work, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_submit_and_results_of_every_task(lab: Lab) -> None:
    out = script(
        lab,
        """
        job = executor(nodes=2, ntasks_per_node=1, job_name="it's a name").submit(add, 2, b=3)
        for result in job.results():
            print(result["sum"], result["rank"], result["tasks"], result["hosts"])
        print(job.watcher.get_state(job.job_id, mode="force"))
        """,
    )
    assert out.splitlines()[:2] == ["5 0 2 ['n1', 'n2']", "5 1 2 ['n1', 'n2']"]
    assert out.splitlines()[2] in ("COMPLETED", "COMPLETING", "RUNNING")


def test_an_exception_in_the_job_comes_back(lab: Lab) -> None:
    out = script(
        lab,
        """
        job = executor().submit(fail)
        print("on purpose" in str(job.exception()))
        """,
    )
    assert out == "True\n"


def test_interrupt_checkpoints_requeues_and_returns_the_second_result(lab: Lab) -> None:
    out = script(
        lab,
        """
        job = executor(signal_delay_s=30).submit(Trainer(), 0)
        while not os.path.exists("ready"):
            time.sleep(0.05)
        job._interrupt(timeout=True)
        print(job.result())
        """,
    )
    assert out == "42\n"
    assert lab.states("1")[0] == "REQUEUED"


def test_cancel(lab: Lab) -> None:
    out = script(
        lab,
        """
        job = executor().submit(Trainer(), 0)
        while not os.path.exists("ready"):
            time.sleep(0.05)
        job.cancel(check=True)
        while not job.watcher.get_state(job.job_id, mode="force").startswith("CANCELLED"):
            time.sleep(0.05)
        print(job.watcher.get_state(job.job_id))
        """,
    )
    assert out.startswith("CANCELLED by ")
