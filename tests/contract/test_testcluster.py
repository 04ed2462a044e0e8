"""The one-machine Slurm leaves nothing, survives its own remains, and says what it lacks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from leaving_out import leave_out, leave_out_for_the_kernel
from waiting import wait_for

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.errors import UnreachableError

pytestmark = pytest.mark.real_slurm
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(testcluster: ModuleType) -> Iterator[Any]:
    cluster = testcluster.TestCluster(tempfile.mkdtemp(prefix="rlaunch-slurm-", dir="/tmp"))
    yield cluster
    cluster.down()
    assert _processes(cluster.directory) == []
    assert not cluster.directory.exists()


def _processes(directory: Path) -> list[str]:
    """Command lines of living processes that belong to a cluster in ``directory``."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        # The test's own process has it in neither; a zombie has neither.
        if str(directory).encode() in environment or str(directory) in command:
            found.append(command)
    return found


def _traces() -> set[Path]:
    """Everything of Slurm, munge or MariaDB where daemons usually leave something."""
    names = ("/run", "/etc", "/dev/shm", "/var/log", "/var/lib", "/var/spool")
    words = ("slurm", "munge", "mysql", "maria")
    return {path for name in names for word in words for path in Path(name).rglob(f"*{word}*")}


def _start_job(cluster: Any) -> None:
    env = {**os.environ, **cluster.env()}
    script = "srun bash -c 'trap \"\" TERM; touch $0; setsid -f sleep 601 >/dev/null 2>&1 </dev/null; sleep 602'"
    started = cluster.directory / "state" / "started"
    done = subprocess.run(
        ["sbatch", "--output=/dev/null", f"--wrap={script} {started}"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    wait_for(started.exists)
    wait_for(lambda: any("sleep 601" in command for command in _processes(cluster.directory)))


def _keeper(cluster: Any) -> int:
    return int((cluster.directory / "testcluster.lock").read_text())


@pytest.mark.parametrize("settings", [{}, {"accounting": True}, {"cgroups": True}], ids=str)
def test_down_leaves_no_process_and_no_file(testcluster: ModuleType, cluster: Any, settings: dict[str, bool]) -> None:
    spec = testcluster.ClusterSpec(num_nodes=2, gpus=0, **settings)
    missing = testcluster.missing_requirements(None, spec)
    if settings.get("cgroups"):
        leave_out_for_the_kernel("cgroups", missing)
    leave_out("accounting", missing)
    before = _traces()
    cluster.up(spec)
    _start_job(cluster)
    assert _processes(cluster.directory)
    first_id = re.search(r"FirstJobId=(\d+)", (cluster.directory / "slurm.conf").read_text())
    cgroups = Path("/sys/fs/cgroup/freezer")
    assert bool(first_id) == bool(settings.get("cgroups"))
    assert first_id is None or list(cgroups.rglob(f"job_{first_id[1]}"))
    cluster.down()
    assert _processes(cluster.directory) == []
    assert not cluster.directory.exists()
    assert _traces() == before
    assert first_id is None or not list(cgroups.rglob(f"job_{first_id[1]}"))
    cluster.down()


def test_up_twice_is_one_cluster(testcluster: ModuleType, cluster: Any) -> None:
    cluster.up(testcluster.ClusterSpec(num_nodes=1))
    keeper = _keeper(cluster)
    cluster.up(testcluster.ClusterSpec(num_nodes=3))
    assert _keeper(cluster) == keeper


def test_a_clusters_ports_are_claimed_for_as_long_as_it_lives(testcluster: ModuleType, cluster: Any) -> None:
    cluster.up(testcluster.ClusterSpec(num_nodes=1))
    ports = re.findall(r"Port=(\d+)", (cluster.directory / "slurm.conf").read_text())
    assert len(ports) == 2

    def claim(port: str) -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"\0rlaunch-testcluster-port-{port}")

    for port in ports:
        with pytest.raises(OSError, match="in use"):
            claim(port)
    cluster.down()
    for port in ports:
        claim(port)


def test_up_and_down_clear_what_a_killed_cluster_left(testcluster: ModuleType, cluster: Any) -> None:
    cluster.up(testcluster.ClusterSpec(num_nodes=1))
    _start_job(cluster)
    os.kill(_keeper(cluster), signal.SIGKILL)
    wait_for(lambda: not cluster.is_running())
    assert any("sleep 602" in command for command in _processes(cluster.directory))
    cluster.up(testcluster.ClusterSpec(num_nodes=1))
    assert not any("sleep 60" in command for command in _processes(cluster.directory))
    os.kill(_keeper(cluster), signal.SIGKILL)
    wait_for(lambda: not cluster.is_running())


def test_a_cluster_tied_to_a_process_ends_with_it(testcluster: ModuleType, cluster: Any) -> None:
    with subprocess.Popen(["sleep", "600"]) as owner:
        cluster.up(testcluster.ClusterSpec(num_nodes=1), until_exit_of=owner.pid)
        _start_job(cluster)
        owner.kill()
    wait_for(lambda: not cluster.directory.exists())
    wait_for(lambda: _processes(cluster.directory) == [])


def test_a_directory_of_somebody_else_is_left_alone(testcluster: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    for action in (testcluster.TestCluster(tmp_path).up, testcluster.TestCluster(tmp_path).down):
        with pytest.raises(testcluster.TestClusterError, match="not empty"):
            action()
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_a_path_that_slurm_cannot_use_is_refused(testcluster: ModuleType, tmp_path: Path) -> None:
    for name, words in (("a b", "characters"), ("x" * 80, "longer than")):
        with pytest.raises(testcluster.TestClusterError, match=words):
            testcluster.TestCluster(tmp_path / name).up()
        assert not (tmp_path / name).exists()


def test_the_command_line_says_which_packages_are_missing(testcluster: ModuleType, tmp_path: Path) -> None:
    # /usr/sbin is always looked at, so only the clients in /usr/bin can be hidden.
    script = ROOT / "slurm" / "testcluster" / "cluster.py"
    done = subprocess.run(
        [sys.executable, str(script), "up", str(tmp_path / "c")],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "sbatch" in done.stderr and "apt-get install -y --no-install-recommends slurm-wlm" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def _controllers(directory: Path) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        # Any other process may end while it is looked at.
        with contextlib.suppress(OSError):
            name, environment = (process / "comm").read_text().strip(), (process / "environ").read_bytes()
            if name == "slurmctld" and str(directory).encode() in environment:
                found.append(int(process.name))
    return found


def test_a_silent_controller_is_unreachable(testcluster: ModuleType, cluster: Any) -> None:
    cluster.up(testcluster.ClusterSpec(num_nodes=1))
    (controller,) = _controllers(cluster.directory)
    slurm = SlurmCommands({**os.environ, **cluster.env()}, timeout_s=2)
    os.kill(controller, signal.SIGSTOP)
    with pytest.raises(UnreachableError, match="within 2 s"):
        slurm.show("1")
    os.kill(controller, signal.SIGKILL)
    slurm = SlurmCommands({**os.environ, **cluster.env()})
    with pytest.raises(UnreachableError, match="Slurm does not answer"):
        slurm.show("1")
