"""What makes a fake cluster fit to be trusted: it loses nothing, meets nobody, and decides alike each time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from fake_lab import Lab, controllers, spec, wait_for

from resilient_launch.cluster.fake import proctree

NUM_JOBS = 24
NUM_KILLS = 4


def test_no_job_is_lost_or_doubled_while_the_controller_is_killed_again_and_again(lab: Lab) -> None:
    accepted: list[str] = []
    done = threading.Event()

    def submit() -> None:
        for number in range(NUM_JOBS):
            body = f"--wrap=echo $SLURM_JOB_ID.$SLURM_RESTART_COUNT >>runs; sleep 0.0{number % 5}"
            # A submission that nobody answers may be made again: what counts is what was promised.
            while (answer := lab.run("sbatch", "--parsable", "--output=/dev/null", body, code=None)).returncode:
                pass
            accepted.append(answer.stdout.strip())
        done.set()

    thread = threading.Thread(target=submit)
    thread.start()
    for number in range(1, NUM_KILLS + 1):
        wait_for(lambda number=number: len(accepted) >= number * NUM_JOBS // (NUM_KILLS + 2), "some submissions")
        for pid in controllers(lab.cluster.state_dir):
            os.kill(pid, signal.SIGKILL)
        lab.cluster.up(spec())
    thread.join()
    assert done.is_set() and len(set(accepted)) == NUM_JOBS
    wait_for(lambda: not lab.run("squeue", "-h").stdout, "the queue to be empty")
    runs = lab.text("runs").split()
    assert len(runs) == len(set(runs)) and {f"{job}." for job in accepted} <= set(runs)
    assert {job for job in accepted if lab.states(job) != ["COMPLETED"]} == set()


def _inodes(name: str) -> set[str]:
    """Inodes of the sockets in a table of /proc/net."""
    path = Path("/proc/net") / name
    return {line.split()[9] for line in path.read_text().splitlines()[1:]} if path.exists() else set()


def _sockets(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        target = str(entry.readlink())
        if target.startswith("socket:["):
            found.add(target.removeprefix("socket:[").removesuffix("]"))
    return found


def test_nobody_else_can_reach_a_cluster(lab: Lab) -> None:
    lab.submit("srun bash -c 'touch ready; sleep 600'")
    lab.wait_file("ready")
    processes = [*controllers(lab.cluster.state_dir), *lab.processes()]
    sockets = {inode for pid in processes if proctree.start_ticks(pid) is not None for inode in _sockets(pid)}
    assert sockets
    for name in ("tcp", "tcp6", "udp", "udp6"):
        assert not sockets & _inodes(name)
    # The only named socket lies where nobody else may look.
    named = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:] if len(line.split()) == 8]
    own = [path for path in named if path.startswith(str(lab.cluster.state_dir))]
    assert set(own) == {str(lab.cluster.state_dir / "slurmctld.sock")}
    assert lab.cluster.state_dir.stat().st_mode & 0o077 == 0


def test_the_same_submissions_get_the_same_ids_and_nodes(lab_of: Callable[..., Lab]) -> None:
    shapes = (("-N2",), ("-N1", "--gres=gpu:1"), ("-N3", "--exclusive"), ("-n5",), ("-N1", "--exclude=n1"), ("-N4",))

    def placed() -> list[str]:
        lab = lab_of(num_nodes=6, gpus=2)
        jobs = [lab.submit("sleep 600", "--hold", *shape) for shape in shapes]
        lab.run("scontrol", "release", ",".join(jobs))
        wait_for(lambda: "RUNNING" in lab.run("squeue", "-h", "-o", "%T").stdout, "jobs to start")
        return lab.run("squeue", "-h", "-o", "%i|%T|%N|%r").stdout.splitlines()

    first = placed()
    assert placed() == first and len({row.split("|")[2] for row in first}) > 2
