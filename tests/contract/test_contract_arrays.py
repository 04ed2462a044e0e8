"""Job arrays: numbers, files, requeue and cancel of one task or of all."""

from __future__ import annotations

import re

import pytest
from slurm_bench import Bench
from waiting import wait_for

STAYS = "trap '' TERM; echo up; sleep 600 & wait"


def _states(bench: Bench, array: str) -> dict[str, str]:
    """Every task that squeue knows, by its shown id."""
    done = bench.run("squeue", "-h", "-r", "-t", "all", "-j", array, "-o", "%i|%T")
    assert done.returncode == 0, done.stderr
    return dict(line.split("|") for line in done.stdout.splitlines())


def test_tasks_of_an_array_know_their_numbers(bench: Bench) -> None:
    array = bench.sbatch(
        'env | grep ^SLURM_ARRAY | sort; echo "job $SLURM_JOB_ID"; [ $SLURM_ARRAY_TASK_ID != 3 ] || exit 5',
        "--array=1-5:2",
        "--output=%A_%a.out",
    )
    wait_for(lambda: set(_states(bench, array).values()) <= {"COMPLETED", "FAILED"})
    assert _states(bench, array) == {f"{array}_1": "COMPLETED", f"{array}_3": "FAILED", f"{array}_5": "COMPLETED"}
    ids = set()
    for task in ("1", "3", "5"):
        *lines, last = (bench.directory / f"{array}_{task}.out").read_text().splitlines()
        assert lines == [
            f"SLURM_ARRAY_JOB_ID={array}",
            "SLURM_ARRAY_TASK_COUNT=3",
            f"SLURM_ARRAY_TASK_ID={task}",
            "SLURM_ARRAY_TASK_MAX=5",
            "SLURM_ARRAY_TASK_MIN=1",
            "SLURM_ARRAY_TASK_STEP=2",
        ]
        ids.add(last.removeprefix("job "))
    # One task's job id is the array's own.
    assert len(ids) == 3 and array in ids


def test_an_array_runs_as_many_tasks_as_it_may(bench: Bench) -> None:
    array = bench.sbatch("sleep 600", "--array=0-3%1", "--output=/dev/null")
    wait_for(lambda: "RUNNING" in _states(bench, array).values())
    wait_for(lambda: "JobArrayTaskLimit" in bench.run("squeue", "-h", "-j", array, "-o", "%r").stdout)
    rows = bench.run("squeue", "-h", "-j", array, "-o", "%i|%F|%K|%T|%r").stdout.splitlines()
    assert sorted(rows) == sorted(
        [
            f"{array}_0|{array}|0|RUNNING|None",
            f"{array}_[1-3%1]|{array}|1-3%1|PENDING|JobArrayTaskLimit",
        ]
    )


def test_requeue_of_one_task_and_of_all(bench: Bench) -> None:
    array = bench.sbatch(STAYS, "--array=0-2", "--output=%A_%a.out")
    wait_for(lambda: list(_states(bench, array).values()) == ["RUNNING"] * 3)
    assert bench.run("scontrol", "requeue", f"{array}_1").returncode == 0
    wait_for(lambda: _states(bench, array)[f"{array}_1"] == "PENDING")
    assert sorted(_states(bench, array).values()) == ["PENDING", "RUNNING", "RUNNING"]
    done = bench.run("scontrol", "requeue", array)
    assert done.returncode == 1
    assert sorted((done.stdout + done.stderr).splitlines()) == [
        f"{array}_0,2: No error",
        f"{array}_1: Job is pending execution",
    ]
    wait_for(lambda: list(_states(bench, array).values()) == ["PENDING"] * 3)


def test_cancel_of_one_task_of_some_and_of_all(bench: Bench) -> None:
    array = bench.sbatch("sleep 600", "--array=0-4", "--output=/dev/null", "--hold")
    for word, left in ((f"{array}_3", "0124"), (f"{array}_[0,2]", "14"), (array, "")):
        assert bench.run("scancel", word).returncode == 0
        expected = {f"{array}_{index}" for index in left}
        # A task that never started may be forgotten as soon as it is cancelled.
        wait_for(lambda: {task for task, state in _states(bench, array).items() if state == "PENDING"} == expected)  # noqa: B023


def test_a_task_that_there_is_not(bench: Bench) -> None:
    array = bench.sbatch("sleep 600", "--array=0-1", "--output=/dev/null", "--hold")
    requeue = bench.run("scontrol", "requeue", f"{array}_9")
    assert (requeue.returncode, requeue.stdout + requeue.stderr) == (1, f"{array}_9: Invalid job id specified\n")
    show = bench.run("scontrol", "show", "job", f"{array}_9")
    assert (show.returncode, show.stdout) == (1, f"Job {array}_9 not found\n")
    assert bench.run("scancel", f"{array}_9").returncode == 0


@pytest.mark.parametrize("text", ["x", "3-1", "0-5:0", "-1", "0-2000", "0-3:"])
def test_what_is_no_array_is_refused(bench: Bench, text: str) -> None:
    done = bench.run("sbatch", f"--array={text}", "--wrap=true")
    words = "sbatch: error: Batch job submission failed: Invalid job array specification\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


def test_symbols_in_file_names(bench: Bench) -> None:
    array = bench.sbatch(
        "echo batch; srun --output=step-%j-%J-%s-%n-%t-%N.txt echo task",
        "--array=7",
        "--output=batch-%A-%a-%4a-%j-%x-%u-%%.txt",
        "--job-name=named",
        "--nodes=2",
    )
    wait_for(lambda: _states(bench, array) == {f"{array}_7": "COMPLETED"})
    batch = bench.directory / f"batch-{array}-7-0007-{array}-named-root-%.txt"
    assert batch.read_text() == "batch\n"
    names = sorted(path.name for path in bench.directory.glob("step-*"))
    assert len(names) == 2
    for rank, name in enumerate(names):
        assert re.fullmatch(rf"step-{array}-{array}\.0-0-{rank}-{rank}-\w+\.txt", name)
