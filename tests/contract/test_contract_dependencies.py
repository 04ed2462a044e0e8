"""Dependencies: what meets them, what never will, and what a requeue of the other job changes."""

from __future__ import annotations

import pytest
from slurm_bench import Bench
from waiting import wait_for

FAILS_ONCE = 'if [ -n "$SLURM_RESTART_COUNT" ]; then exit 0; fi; until [ -e go ]; do sleep 0.1; done; exit 1'


def _waits(bench: Bench, job_id: str) -> str:
    return bench.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T|%r|%E").stdout.strip()


def test_each_kind_of_dependency_on_a_job_that_fails(bench: Bench) -> None:
    first = bench.sbatch(FAILS_ONCE)
    kinds = ("afterok", "afterany", "afternotok", "after")
    jobs = {kind: bench.sbatch("true", f"--dependency={kind}:{first}", "--begin=now") for kind in kinds[:3]}
    either = bench.sbatch("true", f"--dependency=afterok:{first}?afterany:{first}")
    for kind, job_id in jobs.items():
        assert _waits(bench, job_id) == f"PENDING|Dependency|{kind}:{first}(unfulfilled)"
    assert _waits(bench, either) == f"PENDING|Dependency|afterok:{first}(unfulfilled)?afterany:{first}(unfulfilled)"
    bench.wait_state(first, "RUNNING")
    # `after` waits for a start alone.
    bench.wait_state(bench.sbatch("true", f"--dependency=after:{first}"), "COMPLETED")
    (bench.directory / "go").touch()
    for job_id in (jobs["afterany"], jobs["afternotok"], either):
        bench.wait_state(job_id, "COMPLETED")
    never = f"PENDING|DependencyNeverSatisfied|afterok:{first}(failed)"
    wait_for(lambda: _waits(bench, jobs["afterok"]) == never)
    # Neither a requeue nor a success of the other job makes good what has failed.
    bench.slurm.requeue(first)
    bench.slurm.start_now(first)
    bench.wait_state(first, "COMPLETED")
    assert _waits(bench, jobs["afterok"]) == never


def test_a_dependency_that_never_will_be_met_may_cancel_its_job(bench: Bench) -> None:
    first = bench.sbatch("until [ -e go ]; do sleep 0.1; done; exit 1")
    job_id = bench.sbatch("true", f"--dependency=afterok:{first}", "--kill-on-invalid-dep=yes")
    (bench.directory / "go").touch()
    bench.wait_state(job_id, "CANCELLED")
    assert _waits(bench, job_id) == f"CANCELLED|DependencyNeverSatisfied|afterok:{first}(failed)"


def test_a_dependency_waits_through_a_requeue(bench: Bench) -> None:
    first = bench.sbatch('echo "run [$SLURM_RESTART_COUNT]"; until [ -e go ]; do sleep 0.1; done')
    after = bench.sbatch("true", f"--dependency=afterok:{first}")
    bench.wait_line(first, "run []")
    bench.slurm.requeue(first)
    bench.wait_state(first, "PENDING")
    assert _waits(bench, after) == f"PENDING|Dependency|afterok:{first}(unfulfilled)"
    bench.slurm.start_now(first)
    bench.wait_line(first, "run [1]")
    assert _waits(bench, after) == f"PENDING|Dependency|afterok:{first}(unfulfilled)"
    (bench.directory / "go").touch()
    bench.wait_state(after, "COMPLETED")


def test_singletons_run_one_after_the_other_and_a_requeued_one_keeps_its_turn(bench: Bench) -> None:
    name = f"--job-name=one-{bench.directory.name}"
    options = (name, "--dependency=singleton")
    first = bench.sbatch("until [ -e go ]; do sleep 0.1; done", *options)
    second = bench.sbatch("true", *options)
    bench.wait_state(first, "RUNNING")
    assert _waits(bench, second) == "PENDING|Dependency|singleton(unfulfilled)"
    bench.slurm.requeue(first)
    bench.wait_state(first, "PENDING")
    assert _waits(bench, second) == "PENDING|Dependency|singleton(unfulfilled)"
    bench.slurm.start_now(first)
    bench.wait_state(first, "RUNNING")
    assert bench.show(second).state == "PENDING"
    (bench.directory / "go").touch()
    bench.wait_state(second, "COMPLETED")


def test_dependencies_on_an_array_and_on_one_task(bench: Bench) -> None:
    array = bench.sbatch(
        'until [ -e "go$SLURM_ARRAY_TASK_ID" ]; do sleep 0.1; done', "--array=0-1", "--output=/dev/null"
    )
    on_all = bench.sbatch("true", f"--dependency=afterok:{array}")
    on_one = bench.sbatch("true", f"--dependency=afterok:{array}_1")
    assert _waits(bench, on_all) == f"PENDING|Dependency|afterok:{array}_*(unfulfilled)"
    assert _waits(bench, on_one) == f"PENDING|Dependency|afterok:{array}_1(unfulfilled)"
    (bench.directory / "go1").touch()
    bench.wait_state(on_one, "COMPLETED")
    assert bench.show(on_all).state == "PENDING"
    (bench.directory / "go0").touch()
    bench.wait_state(on_all, "COMPLETED")


@pytest.mark.parametrize("text", ["afterok", "sooner:1", "afterok:x"])
def test_what_is_no_dependency_is_refused(bench: Bench, text: str) -> None:
    done = bench.run("sbatch", f"--dependency={text}", "--wrap=true")
    words = "sbatch: error: Batch job submission failed: Job dependency problem\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", words)


def test_a_dependency_on_a_job_that_there_is_not(bench: Bench) -> None:
    done = bench.run("sbatch", "--parsable", "--hold", "--dependency=afterok:987654", "--wrap=true")
    if done.returncode == 0:
        bench.jobs.append(done.stdout.strip())
    assert done.returncode == bench.by_version("sbatch --dependency=afterok:<unknown> exits with", old=0, new=1)
