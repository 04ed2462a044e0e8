"""Bringing a cluster up, taking it down, and killing its controller in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_lab import Lab, controllers, spec, wait_for

import resilient_launch
from resilient_launch.cluster.fake import proctree
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.core.errors import RefusedError, UnreachableError, UsageError


def cluster_id(cluster: FakeCluster) -> str:
    return str(json.loads((cluster.state_dir / "cluster.json").read_text())["cluster_id"])


def test_down_leaves_no_process_no_socket_and_no_file(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "state")
    cluster.up(spec())
    environment = {**os.environ, **cluster.env()}
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\ntrap '' TERM\nsrun bash -c 'trap \"\" TERM; setsid sleep 600 & sleep 600' & wait; sleep 600\n"
    )
    subprocess.run(["sbatch", "-N2", str(script)], env=environment, cwd=tmp_path, check=True, capture_output=True)
    marker = f"RLAUNCH_FAKE_STEP={cluster_id(cluster)}/"
    # Two tasks with two sleeps each, under two supervisors, and the batch step.
    wait_for(lambda: len(proctree.with_marker(marker)) >= 9, "the job's processes")
    cluster.down(remove=True)
    assert proctree.with_marker(marker) == []
    assert controllers(cluster.state_dir) == []
    assert not cluster.state_dir.exists()
    assert not cluster.is_up()


def test_up_twice_is_one_cluster_and_another_shape_is_refused(lab: Lab) -> None:
    before = controllers(lab.cluster.state_dir)
    lab.cluster.up(spec())
    assert controllers(lab.cluster.state_dir) == before
    with pytest.raises(RefusedError, match="another specification"):
        lab.cluster.up(spec(num_nodes=3))


def test_a_directory_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="not a fake cluster"):
        FakeCluster(tmp_path).up(spec())
    FakeCluster(tmp_path).down(remove=True)
    assert (tmp_path / "thesis.txt").exists()


def test_a_second_controller_refuses_the_directory(lab: Lab) -> None:
    (first,) = controllers(lab.cluster.state_dir)
    words = Path(f"/proc/{first}/cmdline").read_bytes().split(b"\0")[:-1]
    second = subprocess.run([os.fsdecode(word) for word in words], timeout=30, check=False)
    assert second.returncode == 3
    assert controllers(lab.cluster.state_dir) == [first]
    lab.run("squeue")


def test_state_is_readable_by_its_owner_only(lab: Lab) -> None:
    assert lab.cluster.state_dir.stat().st_mode & 0o077 == 0
    assert (lab.cluster.state_dir / "slurmctld.sock").stat().st_mode & 0o077 == 0


def test_a_state_path_too_long_for_a_socket_works_and_is_cleaned_up(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / ("deep" * 20) / "with a space" / "state")
    cluster.up(spec())
    socket_path = Path((cluster.state_dir / "cluster.json").read_text().partition('"socket": "')[2].partition('"')[0])
    assert socket_path.exists()
    subprocess.run([cluster.bin_dir / "squeue"], check=True, capture_output=True)
    cluster.down(remove=True)
    assert not socket_path.parent.exists()


def test_an_idle_controller_leaves_by_itself_and_a_busy_one_stays(tmp_path: Path) -> None:
    cluster = FakeCluster(tmp_path / "state")
    cluster.up(spec(), idle_exit_s=2.0)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\nsleep 2.5; date +%s.%N > ended\n")
    environment = {**os.environ, **cluster.env()}
    subprocess.run(["sbatch", str(script)], env=environment, cwd=tmp_path, check=True, capture_output=True)
    wait_for(lambda: not controllers(cluster.state_dir), "the controller to leave")
    assert (tmp_path / "ended").exists()
    assert not (cluster.state_dir / "slurmctld.sock").exists()
    cluster.down(remove=True)


def test_commands_of_a_cluster_that_is_down_say_so_as_slurm_does(lab: Lab) -> None:
    lab.cluster.down()
    assert lab.run("squeue", code=1).stderr == (
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
    )
    assert "connect failure" in lab.run("sbatch", "--wrap=true", code=1).stderr
    assert "DOWN" in lab.run("scontrol", "ping", code=1).stdout
    assert lab.run("scontrol", "show", "hostnames", "n[1-2]").stdout == "n1\nn2\n"
    with pytest.raises(UnreachableError):
        lab.cluster.preempt(1)
    lab.cluster.up(spec())
    lab.run("squeue")


def test_down_cancels_jobs_for_good(lab: Lab) -> None:
    job = lab.submit("touch ready; sleep 600")
    waiting = lab.submit("touch never", "--hold")
    lab.wait_file("ready")
    lab.cluster.down()
    lab.cluster.up(spec())
    assert lab.state(job) == lab.state(waiting) == "CANCELLED"


def test_two_clusters_side_by_side_do_not_meet(lab_of: Callable[..., Lab]) -> None:
    first, second = lab_of(), lab_of()
    job = first.submit("touch ready; sleep 600")
    first.wait_file("ready")
    assert second.run("squeue", "-h").stdout == ""
    second.cluster.down(remove=True)
    assert first.state(job) == "RUNNING"


def kill_controller(lab: Lab) -> None:
    for pid in controllers(lab.cluster.state_dir):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not controllers(lab.cluster.state_dir), "the controller to be gone")


def test_jobs_outlive_a_killed_controller_and_are_adopted(lab: Lab) -> None:
    step = "touch ready; until [ -e go ]; do sleep 0.05; done; exit 7"
    body = f"echo start >> runs; srun bash -c '{step}'; echo code $? >> runs"
    job = lab.submit(body, "-N2")
    lab.wait_file("ready")
    waiting = lab.submit("echo second >> runs", "-N2", "--exclusive")
    kill_controller(lab)
    lab.cluster.up(spec())
    assert lab.state(job) == "RUNNING"
    (lab.work / "go").touch()
    lab.wait_state(waiting, "COMPLETED")
    # Nothing was lost or run twice, and srun found its step again.
    assert lab.text("runs") == "start\ncode 7\nsecond\n"
    assert lab.rows(job) == [
        [job, "COMPLETED", "0:0"],
        [f"{job}.batch", "COMPLETED", "0:0"],
        [f"{job}.0", "FAILED", "7:0"],
    ]


def test_an_end_while_the_controller_is_down_is_noticed_afterwards(lab: Lab) -> None:
    job = lab.submit("touch ready; until [ -e go ]; do sleep 0.05; done; exit 5")
    lab.wait_file("ready")
    kill_controller(lab)
    (lab.work / "go").touch()
    wait_for(lambda: not lab.processes(), "the job to end")
    lab.cluster.up(spec())
    lab.wait_state(job, "FAILED")
    assert lab.field(job, "ExitCode") == "5:0"


def test_a_limit_that_passed_while_the_controller_was_down_is_enforced_afterwards(lab: Lab) -> None:
    job = lab.submit("touch ready; sleep 600")
    lab.wait_file("ready")
    lab.cluster.time_limit(job, 0.2)
    kill_controller(lab)
    lab.cluster.up(spec())
    lab.wait_state(job, "TIMEOUT")
    assert lab.processes() == []


def test_down_after_a_killed_controller_still_cleans_up(lab: Lab) -> None:
    lab.submit("touch ready; sleep 600")
    lab.wait_file("ready")
    kill_controller(lab)
    lab.cluster.down()
    assert lab.processes() == []


def supervisor(lab: Lab, job: str) -> int:
    """The process that supervises the job's batch script."""
    return int((lab.cluster.state_dir / "spool" / f"{job}.0.batch.n1.pid").read_text().split()[0])


def test_down_ends_a_controller_that_no_longer_answers(lab: Lab) -> None:
    lab.submit("touch ready; sleep 600")
    lab.wait_file("ready")
    (pid,) = controllers(lab.cluster.state_dir)
    os.kill(pid, signal.SIGSTOP)
    lab.cluster.down(patience_s=0.5)
    assert lab.processes() == []
    assert controllers(lab.cluster.state_dir) == []


def test_a_supervisor_killed_while_the_controller_is_down_fails_the_job_and_nothing_runs_twice(lab: Lab) -> None:
    job = lab.submit("echo run >> runs; touch ready; sleep 600")
    lab.wait_file("ready")
    kill_controller(lab)
    os.kill(supervisor(lab, job), signal.SIGKILL)
    lab.cluster.up(spec())
    lab.wait_state(job, "FAILED")
    assert lab.processes() == []
    assert lab.text("runs") == "run\n"


def test_a_job_whose_start_was_recorded_but_not_done_is_started_once(lab: Lab) -> None:
    job = lab.submit("echo run >> runs; touch ready; sleep 600")
    lab.wait_file("ready")
    kill_controller(lab)
    proctree.kill_marked(f"RLAUNCH_FAKE_STEP={cluster_id(lab.cluster)}/", timeout_s=10.0)
    # This is how the state looks when the controller dies between its commit and the start of the supervisor.
    for path in (lab.cluster.state_dir / "spool").glob(f"{job}.*"):
        if path.is_file():
            path.unlink()
    lab.cluster.up(spec())
    lab.wait_text("runs", "run", 2)
    assert lab.state(job) == "RUNNING"
    assert lab.field(job, "Restarts") == "0"


def test_a_killed_supervisor_takes_its_tasks_along_and_fails_the_job(lab: Lab) -> None:
    job = lab.submit("touch ready; sleep 600")
    lab.wait_file("ready")
    os.kill(supervisor(lab, job), signal.SIGKILL)
    lab.wait_state(job, "FAILED")
    assert lab.processes() == []


def test_a_removed_state_directory_ends_its_jobs(lab: Lab) -> None:
    lab.submit("touch ready; sleep 600")
    lab.wait_file("ready")
    running = lab.processes()
    kill_controller(lab)
    subprocess.run(["rm", "-rf", str(lab.cluster.state_dir)], check=True)
    wait_for(lambda: all(proctree.start_ticks(pid) is None for pid in running), "the job's processes to go")


def test_an_idle_controller_uses_no_processor_time(lab: Lab) -> None:
    job = lab.submit("touch ready; sleep 600")
    lab.wait_file("ready")
    lab.wait_state(job, "RUNNING")
    (pid,) = controllers(lab.cluster.state_dir)

    def switches() -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])

    before = switches()
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["sleep", "5"], timeout=1.0, check=False)
    # A loop that polls would have woken up many times by now.
    assert switches() - before <= 2


def test_a_command_starts_with_next_to_nothing_imported() -> None:
    root = str(Path(resilient_launch.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {root!r}); import resilient_launch.cluster.fake.client; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert "resilient_launch.cluster.fake.wire" in loaded
    assert not loaded & {"typing", "collections", "enum", "re", "socket", "json", "pathlib", "subprocess", "importlib"}
