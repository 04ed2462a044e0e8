"""What every scheduler does, held against the fake and the real one alike."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from slurm_bench import Bench
from waiting import wait_for

from resilient_launch.cluster.base import RequeueOutcome
from resilient_launch.cluster.hostlist import expand
from resilient_launch.core.errors import RefusedError

STAYS = "trap '' TERM; echo up; sleep 600 & wait"
# Whatever becomes of the last sleep, which TERM may reach, too: it ends with 0.
STEP_ENDS_WHEN_TOLD = (
    "srun bash -c 'trap \"echo step got it\" TERM; echo up; until [ -e go ]; do sleep 0.1; done; exit 0'"
)
ENDS_AT_ONCE_THE_SECOND_TIME = 'if [ -n "$SLURM_RESTART_COUNT" ]; then echo "again $SLURM_RESTART_COUNT"; exit 0; fi\n'
UNKNOWN = "987654"


def test_a_job_runs_to_its_end(bench: Bench) -> None:
    before = int(time.time())
    script = "srun bash -c 'until [ -e go ]; do sleep 0.1; done'"
    job_id = bench.sbatch(script, "--nodes=2", "--time=5", "--job-name=first")
    running = bench.wait_state(job_id, "RUNNING")
    assert (running.job_id, running.name, running.user, running.partition) == (job_id, "first", "root", "low")
    assert running.num_nodes == 2 and len(expand(running.nodes)) == 2
    assert running.batch_host == expand(running.nodes)[0]
    assert running.restart_count == 0 and running.preempt_time is None and running.may_requeue
    assert running.time_limit_s == 300
    assert running.submit_time is not None and running.start_time is not None and running.end_time is not None
    assert before <= running.submit_time <= running.start_time <= time.time()
    assert running.end_time == running.start_time + 300
    (bench.directory / "go").touch()
    ended = bench.wait_state(job_id, "COMPLETED")
    assert (ended.exit_code, ended.exit_signal) == (0, 0) and ended.is_over
    assert ended.end_time is not None and ended.end_time < running.end_time


def test_the_exit_code_of_the_batch_script_is_the_jobs(bench: Bench) -> None:
    ended = bench.wait_state(bench.sbatch("exit 3"), "FAILED")
    assert (ended.exit_code, ended.exit_signal) == (3, 0)


def test_tasks_see_their_place_in_the_gang(bench: Bench) -> None:
    job_id = bench.sbatch(
        "srun bash -c 'echo \"$SLURM_PROCID/$SLURM_NTASKS $SLURM_NODEID $SLURMD_NODENAME [$SLURM_RESTART_COUNT]\"'",
        "--nodes=2",
    )
    view = bench.wait_state(job_id, "COMPLETED")
    nodes = expand(view.nodes)
    assert sorted(bench.output(job_id)) == [f"0/2 0 {nodes[0]} []", f"1/2 1 {nodes[1]} []"]


def test_queue_answers_for_many_jobs_at_once(bench: Bench) -> None:
    first = bench.sbatch("sleep 600", "--nodes=1", "--job-name=a|b c=d (null)")
    second = bench.sbatch("true", "--begin=now+1hour", "--time=10")
    bench.wait_state(first, "RUNNING")
    views = bench.slurm.queue([first, second, UNKNOWN])
    assert set(views) == {first, second}
    assert views[first].name == "a|b c=d (null)" and views[first].state == "RUNNING"
    assert views[first].nodes == bench.show(first).nodes
    assert (views[second].state, views[second].reason, views[second].nodes) == ("PENDING", "BeginTime", "")
    assert views[second].time_limit_s == 600
    assert views[second].submit_time == bench.show(second).submit_time


def test_an_unknown_job(bench: Bench) -> None:
    assert bench.slurm.show(UNKNOWN) is None
    assert bench.slurm.queue([UNKNOWN]) == {}
    assert bench.slurm.history(UNKNOWN) == []
    bench.slurm.cancel(UNKNOWN)
    for refused in (bench.slurm.requeue, bench.slurm.start_now):
        with pytest.raises(RefusedError, match="Invalid job id"):
            refused(UNKNOWN)


@pytest.mark.parametrize(
    "text", ["x JobState=COMPLETED Reason=None", 'it\'s $(touch pwned) `id` "q" #h', "JobId=1 JobName=y", " (null)x"]
)
def test_free_text_comes_back_as_it_was_and_is_never_a_field(bench: Bench, text: str) -> None:
    job_id = bench.sbatch("true", f"--job-name={text}", f"--comment={text}", "--begin=now+1hour")
    view = bench.show(job_id)
    assert (view.name, view.comment, view.state) == (text.strip(), text.strip(), "PENDING")
    assert bench.slurm.queue([job_id])[job_id].name == text.strip()
    assert not (bench.directory / "pwned").exists()


def test_comments_are_those_of_running_jobs_also_while_slurm_signals_them(bench: Bench) -> None:
    waits = bench.sbatch("true", "--comment=waits", "--begin=now+1hour")
    runs = bench.sbatch("while :; do sleep 0.1; done", "--comment=runs", "--nodes=2")
    bench.wait_state(runs, "RUNNING")
    with ThreadPoolExecutor() as pool:
        signals = pool.submit(lambda: [bench.run("scancel", "--signal=CONT", runs).returncode for _ in range(10)])
        while True:
            last = signals.done()
            view, comment = bench.slurm.comments()[runs]
            assert (view.state, view.num_nodes, comment) == ("RUNNING", 2, "runs")
            if last:
                break
    assert signals.result() == [0] * 10
    assert waits not in bench.slurm.comments()


def test_requeue_keeps_the_id_and_counts(bench: Bench) -> None:
    job_id = bench.sbatch('echo "run [$SLURM_RESTART_COUNT]"; trap "" TERM; sleep 600 & wait')
    bench.wait_line(job_id, "run []")
    first = bench.show(job_id)
    assert bench.slurm.requeue(job_id) is RequeueOutcome.REQUEUED
    assert bench.slurm.requeue(job_id) is RequeueOutcome.ALREADY
    waiting = bench.wait_state(job_id, "PENDING")
    assert (waiting.reason, waiting.restart_count) == ("BeginTime", 1)
    assert first.submit_time is not None and waiting.submit_time is not None and waiting.eligible_time is not None
    assert waiting.submit_time >= first.submit_time
    assert waiting.eligible_time >= waiting.submit_time + 10
    bench.slurm.start_now(job_id)
    bench.wait_line(job_id, "run [1]")
    running = bench.show(job_id)
    assert running.start_time is not None and running.start_time < waiting.eligible_time
    # The log of the first run is still there.
    assert "run []" in bench.output(job_id)


def test_a_job_requeues_itself_and_twice_is_no_harm(bench: Bench) -> None:
    job_id = bench.sbatch(
        ENDS_AT_ONCE_THE_SECOND_TIME + 'trap "" TERM\n'
        'scontrol requeue $SLURM_JOB_ID; echo "first $?"\n'
        'scontrol requeue $SLURM_JOB_ID; echo "second $?"\n'
        "sleep 600 & wait"
    )
    bench.wait_line(job_id, "second 1")
    assert "first 0" in bench.output(job_id)
    assert any("pending execution" in line for line in bench.output(job_id))
    bench.wait_state(job_id, "PENDING")
    bench.slurm.start_now(job_id)
    ended = bench.wait_state(job_id, "COMPLETED")
    assert ended.restart_count == 1 and "again 1" in bench.output(job_id)


def test_a_job_that_may_not_be_requeued_is_refused(bench: Bench) -> None:
    job_id = bench.sbatch("sleep 600", "--no-requeue")
    assert bench.wait_state(job_id, "RUNNING").may_requeue is False
    with pytest.raises(RefusedError, match="disabled"):
        bench.slurm.requeue(job_id)
    assert bench.show(job_id).state == "RUNNING"


def test_cancel_ends_a_job_and_may_be_repeated(bench: Bench) -> None:
    job_id = bench.sbatch("srun sleep 600")
    bench.wait_state(job_id, "RUNNING")
    bench.slurm.cancel(job_id)
    assert bench.wait_state(job_id, "CANCELLED").is_over
    bench.slurm.cancel(job_id)
    pending = bench.sbatch("true", "--begin=now+1hour")
    bench.slurm.cancel(pending)
    assert bench.show(pending).state == "CANCELLED"


def test_signals_reach_the_steps_and_not_the_batch_shell(bench: Bench) -> None:
    job_id = bench.sbatch(
        "trap 'echo batch got it' USR1\n"
        "srun bash -c 'trap \"echo step got it; exit 0\" USR1; echo up; while :; do sleep 0.1; done'"
    )
    bench.wait_line(job_id, "up")
    done = bench.run("scancel", "--signal=USR1", job_id)
    assert done.returncode == 0, done.stderr
    bench.wait_line(job_id, "step got it")
    bench.wait_state(job_id, "COMPLETED", "FAILED")
    assert "batch got it" not in bench.output(job_id)


def _preempt(bench: Bench, script: str) -> str:
    """A job with ``script`` on node n1 that a job of partition high has just begun to preempt."""
    job_id = bench.sbatch(script, "--nodelist=n1", "--exclusive", "--time=10")
    bench.wait_line(job_id, "up")
    bench.sbatch("true", "--nodelist=n1", "--exclusive", "--partition=high")
    wait_for(lambda: bench.show(job_id).preempt_time, what="the preemption")
    return job_id


def test_a_preempted_job_shows_its_deadline_and_its_steps_get_term(bench: Bench) -> None:
    job_id = _preempt(
        bench,
        f"trap 'echo batch got it' TERM; {STEP_ENDS_WHEN_TOLD} & wait",
    )
    view = bench.show(job_id)
    assert view.state == "RUNNING" and view.preempt_time is not None
    assert view.end_time == view.preempt_time + 10
    assert abs(view.preempt_time - time.time()) < 30
    bench.wait_line(job_id, "step got it")
    assert "batch got it" not in bench.output(job_id)


def test_an_exit_of_zero_within_the_grace_window(bench: Bench) -> None:
    job_id = _preempt(bench, STEP_ENDS_WHEN_TOLD)
    (bench.directory / "go").touch()
    ended = bench.wait_state(job_id, "COMPLETED", "PENDING", "FAILED")
    what = "exit 0 in the grace window (state, restarts)"
    expected = bench.by_version(what, old=("COMPLETED", 0), new=("PENDING", 1))
    assert (ended.state, ended.restart_count) == expected


def _ends_by_itself(bench: Bench, job_id: str) -> None:
    """The run after one that was preempted: 24.11 requeues it once more, whenever and however it ends."""
    restarts = bench.by_version("restarts of a preempted job until its end counts", old=1, new=2)
    ended = wait_for(lambda: (view := bench.show(job_id)).is_over and view.restart_count >= restarts and view)
    assert ended and (ended.state, ended.restart_count) == ("COMPLETED", restarts)
    assert f"again {restarts}" in bench.output(job_id)


def test_a_requeue_within_the_grace_window_brings_the_job_back(bench: Bench) -> None:
    job_id = _preempt(
        bench, f"{ENDS_AT_ONCE_THE_SECOND_TIME}{STEP_ENDS_WHEN_TOLD}; scontrol requeue $SLURM_JOB_ID; sleep 600"
    )
    (bench.directory / "go").touch()
    bench.wait_state(job_id, "PENDING")
    # Else the job of partition high might find its node taken again, and preempt once more.
    bench.wait_state(bench.jobs[-1], "COMPLETED")
    bench.slurm.start_now(job_id)
    _ends_by_itself(bench, job_id)


@pytest.mark.slow
def test_a_job_that_stays_through_its_grace_is_requeued_by_slurm(bench: Bench) -> None:
    job_id = _preempt(bench, ENDS_AT_ONCE_THE_SECOND_TIME + STAYS)
    waiting = bench.wait_state(job_id, "PENDING", timeout_s=90)
    assert waiting.restart_count == 1
    bench.wait_state(bench.jobs[-1], "COMPLETED")
    bench.slurm.start_now(job_id)
    _ends_by_itself(bench, job_id)
    assert any("DUE TO PREEMPTION" in line for line in bench.output(job_id))


@pytest.mark.slow
def test_a_time_limit_signals_first_and_then_ends_the_job(bench: Bench) -> None:
    job_id = bench.sbatch(
        "srun bash -c 'trap \"date +%s >notice\" USR1; echo up; while :; do sleep 0.1; done'",
        "--time=1",
        "--signal=USR1@15",
    )
    limit = bench.wait_state(job_id, "RUNNING").end_time
    ended = bench.wait_state(job_id, "TIMEOUT", timeout_s=150)
    noticed = int((bench.directory / "notice").read_text())
    assert limit is not None and ended.end_time is not None
    # Slurm looks every 30 s: up to 60 s early, and the end up to 30 s and KillWait late; a busy machine is late too.
    assert limit - 75 <= noticed <= limit - 5
    assert limit <= ended.end_time <= limit + 45
    assert ended.is_over


@pytest.mark.parametrize(
    ("option", "words"),
    [("--partition=nope", "nvalid partition"), ("--frob=1", "unrecognized option"), ("--time=x", "--time")],
)
def test_a_refusal_comes_with_slurms_words(bench: Bench, option: str, words: str) -> None:
    done = bench.run("sbatch", option, "--wrap=true")
    assert done.returncode != 0 and words in done.stderr and done.stdout == ""


def test_a_node_has_an_address_that_answers(bench: Bench) -> None:
    assert socket.getaddrinfo(bench.slurm.node_address("n1"), None)
    with pytest.raises(RefusedError, match="n99"):
        bench.slurm.node_address("n99")


def test_the_version_is_a_number(bench: Bench) -> None:
    assert [int(part) for part in bench.slurm.version().split(".")[:2]] >= [20, 2]
