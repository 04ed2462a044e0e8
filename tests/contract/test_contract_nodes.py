"""Nodes that are drained, fail or are reserved, gangs that wait for them, and GPUs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_bench import Bench
from waiting import wait_for


@pytest.fixture
def node(bench: Bench) -> Iterator[str]:
    """A node that may be drained or taken down; it is idle again afterwards."""
    yield "n2"
    bench.run("scontrol", "update", "nodename=n2", "state=resume")

    def is_back() -> bool:
        state = bench.run("sinfo", "-h", "-n", "n2", "-o", "%T").stdout.split()
        return bool(state) and not any(word.endswith("*") or word in ("down", "drained", "draining") for word in state)

    wait_for(is_back, what="node n2 to be back")


def _reason(bench: Bench, job_id: str) -> str:
    return bench.run("squeue", "-h", "-j", job_id, "-o", "%T|%r").stdout.strip()


def test_a_drained_node_takes_no_job_and_keeps_the_one_it_has(bench: Bench, node: str) -> None:
    running = bench.sbatch("until [ -e go ]; do sleep 0.1; done", f"--nodelist={node}")
    bench.wait_state(running, "RUNNING")
    refused = bench.run("scontrol", "update", f"nodename={node}", "state=drain")
    assert refused.returncode == 1 and "You must specify a reason" in refused.stdout + refused.stderr
    done = bench.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=a loud fan")
    assert done.returncode == 0, done.stderr
    assert bench.run("sinfo", "-h", "-n", node, "-p", "low", "-o", "%t %T %E").stdout == "drng draining a loud fan\n"
    waiting = bench.sbatch("true", f"--nodelist={node}")
    wait_for(lambda: "ReqNodeNotAvail" in _reason(bench, waiting))
    everywhere = bench.sbatch("true", "--nodes=4")
    wait_for(lambda: "Nodes required for job are DOWN, DRAINED" in _reason(bench, everywhere))
    (bench.directory / "go").touch()
    bench.wait_state(running, "COMPLETED")
    wait_for(lambda: "drained" in bench.run("sinfo", "-h", "-n", node, "-o", "%T").stdout)
    assert bench.show(waiting).state == "PENDING"
    bench.run("scontrol", "update", f"nodename={node}", "state=resume")
    bench.wait_state(waiting, "COMPLETED")
    bench.wait_state(everywhere, "COMPLETED")


def test_a_failed_node_brings_its_job_back(bench: Bench, node: str) -> None:
    # The step says that it is up: an srun whose step was still refused would end its batch script before Slurm does.
    job_id = bench.sbatch("srun bash -c 'echo \"up [$SLURM_RESTART_COUNT]\"; sleep 600'", f"--nodelist=n1,{node}")
    wait_for(lambda: bench.output(job_id).count("up []") == 2, what="a task on each node")
    bench.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    waiting = bench.wait_state(job_id, "PENDING")
    assert (waiting.restart_count, waiting.reason, waiting.nodes) == (1, "BeginTime", "")
    wait_for(lambda: any("DUE TO NODE FAILURE" in line for line in bench.output(job_id)))


def test_a_failed_node_ends_a_job_that_may_not_be_requeued(bench: Bench, node: str) -> None:
    job_id = bench.sbatch("srun bash -c 'echo up; sleep 600'", f"--nodelist=n1,{node}", "--no-requeue")
    wait_for(lambda: bench.output(job_id).count("up") == 2, what="a task on each node")
    bench.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    ended = bench.wait_state(job_id, "NODE_FAIL")
    assert (ended.restart_count, ended.reason) == (0, "NodeDown")


def test_a_job_that_asked_for_it_lives_on_without_the_failed_node(bench: Bench, node: str) -> None:
    job_id = bench.sbatch(
        "srun --no-kill bash -c 'echo up; sleep 600' & until [ -e go ]; do sleep 0.1; done; echo over; kill %1",
        f"--nodelist=n1,{node}",
        "--no-kill",
    )
    wait_for(lambda: bench.output(job_id).count("up") == 2, what="a task on each node")
    bench.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    wait_for(lambda: bench.show(job_id).nodes == "n1")
    assert bench.show(job_id).state == "RUNNING"
    (bench.directory / "go").touch()
    bench.wait_line(job_id, "over")
    assert bench.wait_state(job_id, "COMPLETED").restart_count == 0


def test_without_its_batch_host_no_job_lives_on(bench: Bench, node: str) -> None:
    job_id = bench.sbatch("echo up; sleep 600", f"--nodelist={node},n3", "--no-kill")
    bench.wait_line(job_id, "up")
    assert bench.show(job_id).batch_host == node
    bench.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    # It is not requeued either: its batch script was killed, and that is its end.
    ended = bench.wait_state(job_id, "FAILED")
    assert (ended.restart_count, ended.exit_code, ended.exit_signal, ended.nodes) == (0, 0, 9, "n3")


def test_what_a_lost_node_runs_may_live_on_beside_the_jobs_next_run(bench: Bench, node: str) -> None:
    job_id = bench.sbatch(
        'if [ -n "$SLURM_RESTART_COUNT" ]; then echo "again on $SLURMD_NODENAME"; sleep 600; fi\n'
        "trap '' TERM; echo $$ >old.pid; date +%s >beats; echo up; while :; do date +%s >>beats; sleep 0.1; done",
        f"--nodelist={node}",
    )
    bench.wait_line(job_id, "up")
    bench.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    # Slurm gives a job a new submit time as it puts it back into the queue.
    back_s = bench.wait_state(job_id, "PENDING").submit_time
    beats = bench.directory / "beats"
    assert back_s is not None
    wait_for(lambda: int(beats.read_text().splitlines()[-1]) >= back_s + 2, what="the old run to go on")
    assert bench.show(job_id).state == "PENDING"
    # It has KillWait to end, and less where the node comes back and kills what it should not run.
    bench.run("scontrol", "update", f"nodename={node}", "state=resume")
    old = Path("/proc") / (bench.directory / "old.pid").read_text().strip()
    wait_for(lambda: not old.exists(), what="the old run to end")


def _reserve(bench: Bench, nodes: str, start: str) -> str:
    name = f"maint-{len(bench.reservations)}-{bench.directory.name}"[:40]
    done = bench.run(
        "scontrol", "create", "reservation", f"reservationname={name}", f"starttime={start}", "duration=30",
        f"nodes={nodes}", "flags=maint,ignore_jobs", "users=root",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"Reservation created: {name}\n"), done.stderr
    bench.reservations.append(name)
    return name


def test_only_what_fits_before_a_maintenance_starts(bench: Bench) -> None:
    name = _reserve(bench, "ALL", "now+120")
    crossing = bench.sbatch("true", "--time=10")
    endless = bench.sbatch("true")
    wait_for(lambda: _reason(bench, crossing) == "PENDING|ReqNodeNotAvail, Reserved for maintenance")
    wait_for(lambda: "ReqNodeNotAvail" in _reason(bench, endless))
    bench.wait_state(bench.sbatch("true", "--time=1"), "COMPLETED")
    assert bench.show(crossing).state == "PENDING"
    assert bench.run("scontrol", "delete", f"reservationname={name}").returncode == 0
    bench.wait_state(crossing, "COMPLETED")
    bench.wait_state(endless, "COMPLETED")


def test_a_reservation_of_some_nodes_leaves_the_others(bench: Bench) -> None:
    name = _reserve(bench, "n1,n2", "now+120")
    elsewhere = bench.sbatch("true", "--time=10")
    assert set(bench.wait_state(elsewhere, "COMPLETED").nodes.split(",")) <= {"n3", "n4"}
    there = bench.sbatch("true", "--time=10", "--nodelist=n1")
    wait_for(lambda: _reason(bench, there) == "PENDING|ReqNodeNotAvail, May be reserved for other job")
    shown = bench.run("scontrol", "--oneliner", "show", "reservation", name).stdout
    assert f"ReservationName={name} " in shown and " Nodes=n[1-2] NodeCnt=2 " in shown
    assert " Duration=00:30:00 " in shown and "MAINT,IGNORE_JOBS" in shown and " State=INACTIVE " in shown
    bench.run("scontrol", "delete", f"reservationname={name}")
    bench.wait_state(there, "COMPLETED")


def test_a_maintenance_does_not_end_what_runs(bench: Bench) -> None:
    job_id = bench.sbatch("echo up; until [ -e go ]; do sleep 0.1; done", "--nodelist=n1")
    bench.wait_line(job_id, "up")
    name = _reserve(bench, "n1", "now")
    wait_for(lambda: " State=ACTIVE " in bench.run("scontrol", "-o", "show", "reservation", name).stdout)
    assert bench.show(job_id).state == "RUNNING"
    (bench.directory / "go").touch()
    assert bench.wait_state(job_id, "COMPLETED").restart_count == 0


def test_reservations_that_cannot_be(bench: Bench) -> None:
    name = _reserve(bench, "n1", "now+1hour")
    create = ("scontrol", "create", "reservation", "starttime=now+1hour", "duration=5", "user=root")
    twice = bench.run(*create, f"reservationname={name}", "nodes=n1")
    assert (twice.returncode, twice.stdout + twice.stderr) == (
        1,
        "Error creating the reservation: Duplicate reservation name\n",
    )
    unknown = bench.run(*create, "nodes=n99")
    assert (unknown.returncode, unknown.stdout + unknown.stderr) == (
        1,
        "Error creating the reservation: Invalid node name specified\n",
    )
    show = bench.run("scontrol", "show", "reservation", "nope")
    assert (show.returncode, show.stdout) == (1, "Reservation nope not found\n")
    assert bench.run("scontrol", "delete", "reservationname=nope").returncode == 1


def test_a_gang_starts_together_or_not_at_all(bench: Bench) -> None:
    one = bench.sbatch("until [ -e go ]; do sleep 0.1; done", "--nodelist=n3", "--exclusive", "--time=30")
    bench.wait_state(one, "RUNNING")
    gang = bench.sbatch("srun hostname", "--nodes=4", "--exclusive", "--time=5")
    wait_for(lambda: _reason(bench, gang) == "PENDING|Resources")
    # A short job may pass it, one that would delay it may not.
    late = bench.sbatch("true", "--nodes=1", "--exclusive", "--time=60")
    wait_for(lambda: _reason(bench, late) in ("PENDING|Priority", "PENDING|Resources"))
    bench.wait_state(bench.sbatch("true", "--nodes=1", "--exclusive", "--time=1"), "COMPLETED")
    assert (bench.show(gang).state, bench.show(late).state) == ("PENDING", "PENDING")
    (bench.directory / "go").touch()
    assert bench.wait_state(gang, "COMPLETED").num_nodes == 4
    ended, late_one = bench.wait_state(gang, "COMPLETED"), bench.wait_state(late, "COMPLETED")
    assert ended.start_time is not None and late_one.start_time is not None
    assert ended.start_time <= late_one.start_time


def test_of_two_that_wait_the_one_of_higher_priority_starts_first(bench: Bench) -> None:
    options = ("--nodelist=n4", "--exclusive", "--time=5")
    blocker = bench.sbatch("until [ -e go ]; do sleep 0.1; done", *options)
    bench.wait_state(blocker, "RUNNING")
    script = 'until [ -e "end$SLURM_JOB_ID" ]; do sleep 0.1; done'
    older, younger = bench.sbatch(script, *options), bench.sbatch(script, *options)
    for job_id, priority in ((older, 10), (younger, 1000)):
        assert bench.run("scontrol", "update", f"jobid={job_id}", f"priority={priority}").returncode == 0
    (bench.directory / "go").touch()
    bench.wait_state(younger, "RUNNING")
    assert bench.show(older).state == "PENDING"
    (bench.directory / f"end{younger}").touch()
    bench.wait_state(older, "RUNNING")


def test_the_gpus_of_a_node_are_shared_out(bench: Bench) -> None:
    script = (
        'echo "batch $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS $SLURM_GPUS_ON_NODE"\n'
        "srun bash -c 'echo \"task $SLURM_PROCID $CUDA_VISIBLE_DEVICES\"'; until [ -e go ]; do sleep 0.1; done"
    )
    first = bench.sbatch(script, "--nodelist=n[1-2]", "--gres=gpu:1")
    second = bench.sbatch(script, "--nodelist=n[1-2]", "--gpus-per-node=1")
    third = bench.sbatch(script, "--nodelist=n[1-2]", "--gres=gpu:1")
    seen = []
    for job_id in (first, second):
        wait_for(lambda job_id=job_id: len(bench.output(job_id)) == 3)
        batch, *tasks = bench.output(job_id)[:1] + sorted(bench.output(job_id)[1:])
        _, visible, listed, count = batch.split()
        assert (listed, count) == (visible, "1")
        assert tasks == [f"task 0 {visible}", f"task 1 {visible}"]
        seen.append(visible)
    assert sorted(seen) == ["0", "1"]
    assert bench.show(third).state == "PENDING"
    assert " GRES=gpu:1(IDX:" in bench.run("scontrol", "-d", "show", "job", first).stdout
    (bench.directory / "go").touch()
    bench.wait_state(third, "COMPLETED")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--gres=gpu:9", "Batch job submission failed: Requested node configuration is not available"),
        ("--gres=flux:1", "Invalid generic resource (gres) specification"),
        ("--mem=900G", "Memory specification can not be satisfied\nsbatch: error: Batch job submission failed: "),
        ("--nodelist=n99", "Batch job submission failed: Invalid node name specified"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(bench: Bench, option: str, words: str) -> None:
    done = bench.run("sbatch", option, "--wrap=true")
    assert done.returncode == 1 and done.stdout == "" and words in done.stderr


def test_more_nodes_than_there_are(bench: Bench) -> None:
    done = bench.run("sbatch", "--parsable", "--nodes=9", "--wrap=true")
    if done.returncode == 0:
        bench.jobs.append(done.stdout.strip())
        wait_for(lambda: _reason(bench, bench.jobs[-1]) == "PENDING|PartitionNodeLimit")
    else:
        assert done.stderr.endswith("Requested node configuration is not available\n")
    assert done.returncode == bench.by_version("sbatch --nodes=<more than there are> exits with", old=0, new=1)


def test_a_trial_submission_says_when_and_where(bench: Bench) -> None:
    done = bench.run("sbatch", "--test-only", "--nodes=2", "--time=5", "--wrap=true")
    pattern = r"sbatch: Job \d+ to start at (\S+) using 2 processors on nodes n\[1-2\] in partition low\n"
    match = re.fullmatch(pattern, done.stderr)
    assert done.returncode == 0 and done.stdout == "" and match, done.stderr
    start = time.mktime(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
    assert abs(start - time.time()) < 60
    assert bench.run("squeue", "-h", "-n", "wrap").stdout == ""
