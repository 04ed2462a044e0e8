"""How a failed run comes back on the fake cluster: after a wait, and not on a node that failed or may still run it."""

from __future__ import annotations

from collections.abc import Callable

from integration_bench import RunBench
from waiting import wait_for

from resilient_launch.cluster.base import JobView
from resilient_launch.job.attempt import read_attempts, read_ends

Reference = Callable[[int], str]


def test_a_crash_waits_its_time_whoever_follows_and_a_person_may_cut_it_short(
    bench: RunBench, reference: Reference
) -> None:
    keys = {"restart": {"max_worker_restarts": 0, "backoff": "10m"}, "fake": {"kill_wait": "60s"}}
    job_id = bench.submit(bench.config("run", ["--crash-once-at", "20"], checkpoint={"every": "10 steps"}, **keys))
    wait_for(lambda: (view := bench.slurm.show(job_id)) and view.reason == "BeginTime", what="the job to wait")
    end = read_ends(bench.paths("run"))[0]
    assert end.cause == "crash"
    assert 300 <= end.not_before - end.ended_at <= 600
    view = bench.slurm.show(job_id)
    assert view is not None
    assert view.eligible_time is not None
    assert abs(view.eligible_time - end.not_before) < 5
    # Whoever follows the run lifts Slurm's own wait after a requeue, but not this one.
    assert bench.rlaunch("wait", "run", "--timeout", "2").returncode == 101
    view = bench.slurm.show(job_id)
    assert view is not None
    assert (view.state, view.reason) == ("PENDING", "BeginTime")
    assert "need not wait" in bench.rlaunch("requeue", "run").stdout
    bench.wait("run")
    assert bench.digest("run") == reference(1)


def test_the_next_attempt_stays_away_from_a_node_that_failed(bench: RunBench, reference: Reference) -> None:
    args = ["--step-s", "0.02", "--slow-from", "30"]
    fake = {"nodes": 4}
    job_id = bench.submit(
        bench.config("run", args, nodes=2, fake=fake, checkpoint={"every": "10 steps"}, restart={"backoff": "0s"})
    )
    bench.wait_step("run", 30)
    first = read_attempts(bench.paths("run"))[0].nodes
    bench.fake.fail_node(first[1])
    wait_for(lambda: 0 in read_ends(bench.paths("run")), what="the end of the first attempt")
    bench.fake.resume_node(first[1])
    bench.wait("run")
    end = read_ends(bench.paths("run"))[0]
    assert (end.cause, end.suspects) == ("node_failure", (first[1],))
    second = read_attempts(bench.paths("run"))[1].nodes
    assert first[1] not in second
    assert f"ExcNodeList={first[1]}" in bench.slurm_run("scontrol", "show", "job", job_id).stdout
    assert bench.digest("run") == reference(2)


def _lose_without_a_word(bench: RunBench, kill_wait: str) -> tuple[str, JobView]:
    """A run whose only node fails under it, and that Slurm makes wait for an hour; its job, and how that waits."""
    fake = {"kill_wait": kill_wait, "requeue_delay": "1h"}
    args = ["--step-s", "0.03", "--slow-from", "20"]
    job_id = bench.submit(bench.config("run", args, checkpoint={"every": "10 steps"}, fake=fake))
    bench.wait_step("run", 20)
    bench.fake.fail_node(read_attempts(bench.paths("run"))[0].nodes[0])
    waiting = wait_for(
        lambda: view if (view := bench.slurm.show(job_id)) and view.reason == "BeginTime" else None,
        what="the job to wait",
    )
    assert not read_ends(bench.paths("run"))
    return job_id, waiting


def test_a_follower_lets_a_lost_attempt_end_before_it_lifts_the_wait(bench: RunBench, reference: Reference) -> None:
    job_id, waiting = _lose_without_a_word(bench, "3s")
    # Its first looks come before KillWait and the margin are over.
    assert bench.rlaunch("wait", "run", "--timeout", "2").returncode == 101
    view = bench.slurm.show(job_id)
    assert view is not None
    assert (view.reason, view.eligible_time) == ("BeginTime", waiting.eligible_time)
    bench.wait("run")
    assert [row["cause"] for row in bench.status("run")["attempts"]] == ["node_failure", "finished"]
    assert bench.digest("run") == reference(1)


def test_a_person_who_requeues_a_lost_attempt_gets_it_when_it_has_ended(bench: RunBench) -> None:
    job_id, waiting = _lose_without_a_word(bench, "30m")
    assert waiting.submit_time is not None
    assert "may be alive" in bench.rlaunch("requeue", "run").stdout
    view = bench.slurm.show(job_id)
    assert view is not None
    assert view.eligible_time is not None and waiting.eligible_time is not None
    assert waiting.submit_time + 1800 <= view.eligible_time < waiting.eligible_time
