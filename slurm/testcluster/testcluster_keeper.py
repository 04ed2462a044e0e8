"""The process that is a test cluster's life: it starts the daemons, adopts every orphan, and ends them all."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import testcluster_accounting as accounting
import testcluster_cgroups as cgroups
import testcluster_release as release
from testcluster_settings import ClusterSpec, cgroup_conf, gres_conf, munge_socket, slurm_conf

STOP_SIGNAL = signal.SIGTERM
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MARK = "RLAUNCH_TESTCLUSTER_KEPT"
"""Set in the daemons' environment only, never in a user's: it tells a leftover daemon from a shell that used `env`."""
_PORTS = range(10000, 32000)
"""Below Linux's ephemeral ports, so that no outgoing connection takes one between the choice and the bind."""


def lock_file(directory: Path) -> Path:
    """Held locked by the keeper while it lives; holds its process id; its presence marks the directory as ours."""
    return directory / "testcluster.lock"


def quiet_environment(slurm: Path | None = None) -> dict[str, str]:
    """The caller's environment without Slurm's own variables, with the places where Debian puts daemons on PATH.

    Before them comes ``slurm``, a folder that testcluster_release.py has filled.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SINFO_"))}
    own = () if slurm is None else (str(release.bin_dir(slurm)),)
    kept["PATH"] = os.pathsep.join((*own, os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    return kept


def main(directory: Path, order: dict[str, object]) -> None:
    """Keep the cluster in ``directory`` until told to stop, or until the process it is tied to ends."""
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    os.set_inheritable(int(str(order["lock_fd"])), False)
    lock_file(directory).write_text(str(os.getpid()))
    spec = ClusterSpec(**order["spec"])  # type: ignore[arg-type]
    owner = order["until_exit_of"]
    abandoned = False
    try:
        pidfd = os.pidfd_open(int(str(owner))) if owner is not None else None
        # The claims live as long as this process.
        ports, _claims = _claim_ports(2 + spec.num_nodes)
        _start(directory, spec, libc, Path(str(order["slurm"])) if order["slurm"] else None, ports)
        while True:
            if pidfd is not None and select.select([pidfd], [], [], 0)[0]:
                abandoned = True
                break
            received = signal.sigtimedwait(signals, 1.0 if pidfd is not None else 3600.0)
            if received is not None and received.si_signo != signal.SIGCHLD:
                break
            _reap()
    finally:
        kill_children()
    if abandoned:
        # Nobody is left to call `down`.
        clear(directory)
        directory.rmdir()


def _start(directory: Path, spec: ClusterSpec, libc: ctypes.CDLL, slurm: Path | None, ports: list[int]) -> None:
    version = _version(slurm)
    for name in ("state", "spool", "pid", "log", "gpu"):
        (directory / name).mkdir()
    for index in range(1, spec.num_nodes + 1):
        (directory / "spool" / f"n{index}").mkdir()
    for index in range(spec.gpus):
        (directory / "gpu" / f"nvidia{index}").symlink_to("/dev/null")
    key = directory / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    hostname = socket.gethostname().split(".")[0]
    ctld_port, dbd_port, *node_ports = ports
    plugin_dir = None if slurm is None else release.plugin_dir(slurm)
    (directory / "gres.conf").write_text(gres_conf(spec, directory=directory))
    (directory / "cgroup.conf").write_text(cgroup_conf(spec, version))
    conf = directory / "slurm.conf"
    text = slurm_conf(
        spec,
        version=version,
        directory=directory,
        hostname=hostname,
        ctld_port=ctld_port,
        node_ports=node_ports,
        dbd_port=dbd_port if spec.accounting else None,
        plugin_dir=plugin_dir,
    )
    conf.with_suffix(".new").write_text(text)
    conf.with_suffix(".new").replace(conf)

    environment = {**quiet_environment(slurm), "SLURM_CONF": str(conf), _MARK: str(directory)}

    def launch(name: str, *command: str) -> subprocess.Popen[bytes]:
        # Slurm's daemons write their log file and, in the foreground, standard error too; it alone has a fatal start.
        with (directory / "log" / f"{name}.stderr").open("ab") as log:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                start_new_session=True,
                preexec_fn=lambda: _before_exec(libc),
            )

    # --force: the parents of a temporary directory are often closed to others, and only root uses this socket.
    munged = launch(
        "munged",
        "munged",
        "--foreground",
        "--force",
        f"--socket={munge_socket(directory)}",
        f"--key-file={key}",
        f"--log-file={directory}/log/munged",
        f"--pid-file={directory}/pid/munged",
        f"--seed-file={directory}/munge.seed",
        "--origin=127.0.0.1",
    )
    _wait_for(munged, munge_socket(directory))
    if spec.accounting:
        conf = directory / "slurmdbd.conf"
        conf.touch(mode=0o600)
        conf.write_text(
            accounting.slurmdbd_conf(
                directory,
                hostname=hostname,
                port=dbd_port,
                munge_socket=munge_socket(directory),
                plugin_dir=plugin_dir,
            )
        )
        environment |= accounting.environment(directory)
        accounting.make_database(directory, environment=environment)
        _wait_for(launch("mariadbd", *accounting.server(directory)), accounting.database_socket(directory))
        _wait_for(launch("slurmdbd", "slurmdbd", "-D"), dbd_port)
    _wait_for(launch("slurmctld", "slurmctld", "-D", "-c"), ctld_port)
    step_daemon = () if slurm is None else ("-d", str(release.bin_dir(slurm) / "slurmstepd"))
    for index in range(1, spec.num_nodes + 1):
        launch(f"n{index}", "slurmd", "-D", "-N", f"n{index}", *step_daemon)


def _before_exec(libc: ctypes.CDLL) -> None:
    # A killed keeper must not leave daemons; and they must not start with the keeper's blocked signals.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _version(slurm: Path | None) -> tuple[int, ...]:
    done = subprocess.run(
        ["slurmctld", "-V"], env=quiet_environment(slurm), capture_output=True, text=True, timeout=10, check=True
    )
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else (0,)


def _claim_ports(count: int) -> tuple[list[int], list[socket.socket]]:
    """Ports that nothing listens on, and that no other test cluster takes while the sockets that come with them live.

    A cluster binds its ports one after the other, the last ones many seconds after they were chosen.
    """
    claimed: dict[int, socket.socket] = {}
    while len(claimed) < count:
        port = random.choice(_PORTS)
        claim = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name: exclusive, and gone with the process.
            claim.bind(f"\0rlaunch-testcluster-port-{port}")
            with socket.socket() as probe:
                probe.bind(("", port))
        except OSError:
            claim.close()
        else:
            claimed[port] = claim
    return list(claimed), list(claimed.values())


def _answers(address: Path | int) -> bool:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.connect(str(address) if isinstance(address, Path) else ("127.0.0.1", address))
        except OSError:
            return False
        return True


def _wait_for(daemon: subprocess.Popen[bytes], address: Path | int) -> None:
    deadline = time.monotonic() + 30
    while not _answers(address):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{daemon.args!r} {'does not answer' if daemon.returncode is None else 'ended'}")
        time.sleep(0.02)


def kill_children() -> None:
    """Kill everything below this process and wait for it; a subreaper's descendants cannot escape."""
    while _reap():
        for pid in _descendants(os.getpid()):
            _kill(pid)
        time.sleep(0.01)


def _reap() -> bool:
    """Collect every ended child; whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def clear(directory: Path) -> None:
    """Remove everything in ``directory``, the file that marks it as ours last, and the cgroups of its jobs."""
    cgroups.clear(directory / "slurm.conf")
    for path in sorted(directory.iterdir(), key=lambda path: path == lock_file(directory)):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def kill_leftovers(directory: Path) -> None:
    """Kill what a cluster in ``directory`` left when its own keeper was killed: marked daemons, and jobs of theirs."""
    mark = f"{_MARK}={directory}".encode()
    conf = f"SLURM_CONF={directory}/slurm.conf".encode()
    deadline = time.monotonic() + 30
    while True:
        found: set[int] = set()
        for pid in _pids():
            variables = _environment(pid)
            in_job = conf in variables and any(value.startswith(b"SLURM_JOB_ID=") for value in variables)
            if mark in variables or in_job:
                found |= {pid, *_descendants(pid)}
        found -= {os.getpid(), *_ancestors(os.getpid())}
        if not found:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {directory} do not end: {sorted(found)}")
        for pid in found:
            _kill(pid)
        time.sleep(0.01)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _environment(pid: int) -> set[bytes]:
    # A zombie's is empty: it has ended, and is its parent's to collect.
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def _descendants(root: int) -> list[int]:
    parents = {pid: _parent(pid) for pid in _pids()}
    found, todo = [], [root]
    while todo:
        parent = todo.pop()
        children = [pid for pid, its_parent in parents.items() if its_parent == parent]
        found += children
        todo += children
    return found


def _ancestors(pid: int) -> Iterator[int]:
    while (pid := _parent(pid)) > 1:
        yield pid


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
