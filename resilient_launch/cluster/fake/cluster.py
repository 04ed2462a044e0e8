"""The fake cluster as a Python object: bring it up, take it down, make things happen to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resilient_launch.cluster.fake import proctree, wire
from resilient_launch.cluster.fake.environment import MARKER
from resilient_launch.cluster.fake.launch import bootstrap
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.core.durable import replace_file
from resilient_launch.core.errors import RefusedError, UnreachableError, UsageError

COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel", "sinfo")
_MAX_SOCKET_PATH = 100
_START_S = 15.0
_END_S = 5.0


class FakeCluster:
    """One cluster over one state directory, which nobody but its owner can read.

    The object holds no state of its own: any process that knows the directory can use it.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = Path(state_dir).absolute()

    @property
    def bin_dir(self) -> Path:
        """Where Slurm's commands are."""
        return self.state_dir / "bin"

    @property
    def log(self) -> Path:
        """The controller's own log."""
        return self.state_dir / "slurmctld.log"

    def env(self) -> dict[str, str]:
        """The variables that make a shell, or a subprocess, use this cluster: PATH with its commands in front."""
        rest = [part for part in os.environ.get("PATH", os.defpath).split(":") if part and part != str(self.bin_dir)]
        return {"PATH": ":".join([str(self.bin_dir), *rest]), "RLAUNCH_FAKE_CLUSTER": str(self.state_dir)}

    def up(self, spec: FakeSpec, *, idle_exit_s: float | None = None) -> None:
        """Start the controller and wait until it answers; one that already runs with the same spec is left alone.

        With ``idle_exit_s`` it leaves by itself once no job has been pending or running, and nobody has asked
        anything, for so many seconds. Raises RefusedError when a cluster of another shape lives here, UsageError when
        the directory is something else, UnreachableError when the controller does not come up.
        """
        self._ensure(self._prepare(spec), idle_exit_s)

    def _ensure(self, config: dict[str, Any], idle_exit_s: float | None) -> None:
        with (self.state_dir / "up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.is_up():
                return
            if config.get("idle_exit_s") != idle_exit_s:
                config = {**config, "idle_exit_s": idle_exit_s}
                self._write_config(config)
            self._start(config, idle_exit_s)

    def _write_config(self, config: dict[str, Any]) -> None:
        replace_file(self.state_dir / "cluster.json", json.dumps(config, indent=1).encode(), mode=0o600)

    def _prepare(self, spec: FakeSpec) -> dict[str, Any]:
        path = self.state_dir / "cluster.json"
        if self.state_dir.exists() and not path.exists() and any(self.state_dir.iterdir()):
            raise UsageError(
                f"{self.state_dir}",
                why="the directory holds something that is not a fake cluster",
                hint="name an empty or a new directory",
            )
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.state_dir.chmod(0o700)
        if path.exists():
            config: dict[str, Any] = json.loads(path.read_text())
            if config["spec"] != json.loads(json.dumps(spec.to_dict())):
                raise RefusedError(
                    f"fake cluster in {self.state_dir}",
                    why="it was brought up with another specification",
                    hint="take it down with its state removed first, or use another state directory",
                )
            return config
        config = {"spec": spec.to_dict(), "cluster_id": secrets.token_hex(8), "socket": self._choose_socket()}
        (self.state_dir / "spool").mkdir(mode=0o700, exist_ok=True)
        self._write_commands(config["socket"])
        self._write_config(config)
        return json.loads(json.dumps(config))  # type: ignore[no-any-return]

    def _choose_socket(self) -> str:
        path = str(self.state_dir / "slurmctld.sock")
        if len(os.fsencode(path)) < _MAX_SOCKET_PATH:
            return path
        return str(Path(tempfile.mkdtemp(prefix="rlaunch-")) / "s")

    def _write_commands(self, socket_path: str) -> None:
        self.bin_dir.mkdir(mode=0o700, exist_ok=True)
        code = bootstrap("resilient_launch.cluster.fake.client")
        for name in COMMANDS:
            words = [sys.executable, "-I", "-S", "-c", code, name, socket_path]
            script = self.bin_dir / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            script.chmod(0o700)

    def _start(self, config: dict[str, Any], idle_exit_s: float | None) -> None:
        Path(config["socket"]).parent.mkdir(mode=0o700, exist_ok=True)
        code = bootstrap("resilient_launch.cluster.fake.controller")
        argv = [sys.executable, "-I", "-c", code, str(self.state_dir), "" if idle_exit_s is None else str(idle_exit_s)]
        # A job's own marker must not stick to the controller, or the job's end would take it along.
        environment = {name: value for name, value in os.environ.items() if name != MARKER}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/", env=environment
            )
        deadline = time.monotonic() + _START_S
        while not self.is_up():
            if process.poll() not in (None, 3) or time.monotonic() > deadline:
                process.kill()
                raise UnreachableError(
                    f"fake cluster in {self.state_dir}",
                    why="its controller did not come up",
                    hint=f"read {self.log}",
                )
            time.sleep(0.01)
        # The daemon outlives this object on purpose.
        process.returncode = 0

    def spec(self) -> FakeSpec | None:
        """What the cluster was brought up as, whether or not it is up; None where there never was one."""
        config = self._config()
        return None if config is None else FakeSpec.from_dict(config["spec"])

    def is_up(self) -> bool:
        """Whether the controller answers."""
        try:
            return bool(self._ask({"verb": "hello"}).get("ok"))
        except UnreachableError:
            return False

    def down(self, *, remove: bool = False, patience_s: float = 40.0) -> None:
        """Kill every job, stop the controller and leave no process and no socket behind; ``remove`` deletes all state.

        Fine on a cluster that is down, or whose controller was killed; a controller that has not answered for
        ``patience_s`` is killed as well. Raises UnreachableError when something outlives its KILL.
        """
        config = self._config()
        if config is None:
            return
        with contextlib.suppress(UnreachableError):
            self._ask({"verb": "shutdown"}, timeout_s=patience_s)
        self._wait_for_lock()
        left = proctree.kill_marked(f"{MARKER}={config['cluster_id']}/", timeout_s=10.0)
        if left:
            raise UnreachableError(
                f"fake cluster in {self.state_dir}",
                why=f"processes {', '.join(map(str, left))} outlive their KILL",
                hint="look at them with ps; they probably hang in the kernel",
            )
        socket_path = Path(config["socket"])
        socket_path.unlink(missing_ok=True)
        if socket_path.parent != self.state_dir:
            with contextlib.suppress(OSError):
                socket_path.parent.rmdir()
        if remove:
            shutil.rmtree(self.state_dir)

    def _wait_for_lock(self) -> None:
        """Until the controller's process has ended; one that does not end by itself is killed."""
        path = self.state_dir / "lock"
        if not path.exists():
            return
        deadline = time.monotonic() + _END_S
        with path.open("r+") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        pid, ticks = map(int, path.read_text().split())
                        if proctree.is_alive(pid, ticks):
                            os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)

    def controller_down(self) -> None:
        """The controller goes away; its jobs run on, and Slurm's commands can't reach it.

        Raises UnreachableError when it is down already.
        """
        self._do({"verb": "stop"})
        self._wait_for_lock()

    def controller_up(self) -> None:
        """The controller comes back and finds its jobs; nothing to do where it is up.

        Raises UnreachableError when there is no cluster here, or it does not come up.
        """
        config = self._config()
        if config is None:
            raise self._unreachable()
        self._ensure(config, config.get("idle_exit_s"))

    def status(self) -> dict[str, Any]:
        """Specification, nodes, numbers of jobs by state, reservations, accounting. Raises UnreachableError."""
        return {name: value for name, value in self._do({"verb": "status"}).items() if name != "ok"}

    def preempt(self, job_id: int | str) -> None:
        """Preempt a running job as a job of a higher tier would: its partition's grace time starts now.

        Raises RefusedError unless it runs, UnreachableError when the cluster is down.
        """
        self._do({"verb": "preempt", "job": int(job_id)})

    def time_limit(self, job_id: int | str, in_s: float) -> None:
        """Pull a running job's time limit in, to ``in_s`` seconds from now; ``--signal`` keeps its lead if it can.

        Raises RefusedError unless it runs, UnreachableError when the cluster is down.
        """
        self._do({"verb": "time_limit", "job": int(job_id), "in_s": float(in_s)})

    def fail_node(self, node: str, *, network_only: bool = False) -> None:
        """A node goes down with all it runs, or (``network_only``) is cut off while its processes live on.

        Raises RefusedError for an unknown node, UnreachableError when the cluster is down.
        """
        self._do({"verb": "fail_node", "node": node, "network_only": network_only})

    def resume_node(self, node: str) -> None:
        """A node that went down or was drained is back. What outlived a cut on it is killed as it comes back.

        Raises RefusedError for an unknown node, UnreachableError when the cluster is down.
        """
        self._do({"verb": "resume_node", "node": node})

    def drain(self, node: str, *, reason: str = "drained by hand") -> None:
        """No job starts on the node any more; those that run go on.

        Raises RefusedError for an unknown node, UnreachableError when the cluster is down.
        """
        self._do({"verb": "drain", "node": node, "reason": reason})

    def maintenance(self, *, in_s: float, for_s: float, nodes: Sequence[str] = (), name: str = "maintenance") -> None:
        """Reserve nodes (all of them by default): no job starts whose time limit would reach into the window.

        Raises RefusedError for an unknown node or a name in use, UnreachableError when the cluster is down.
        """
        request = {"verb": "maintenance", "in_s": in_s, "for_s": for_s, "nodes": list(nodes), "name": name}
        self._do(request)

    def fill(self, *, num_jobs: int | None = None, for_s: float = 600.0, partition: str | None = None) -> list[int]:
        """Queue pressure: jobs of one whole node each (as many as there are nodes), which run for ``for_s``.

        Returns their ids. Raises RefusedError for an unknown partition, UnreachableError when the cluster is down.
        """
        request = {"verb": "fill", "num_jobs": num_jobs, "for_s": for_s, "partition": partition or ""}
        return [int(job_id) for job_id in self._do(request)["jobs"]]

    def slow_accounting(self, delay_s: float) -> None:
        """sacct answers, after ``delay_s``; with 0 accounting is as it should be, lost or not before.

        Raises RefusedError on a cluster without accounting, UnreachableError when it is down.
        """
        self._do({"verb": "accounting", "mode": "on", "delay_s": delay_s})

    def no_accounting(self) -> None:
        """Accounting's database does not answer: sacct fails.

        Raises RefusedError on a cluster without accounting, UnreachableError when it is down.
        """
        self._do({"verb": "accounting", "mode": "lost", "delay_s": 0.0})

    def _do(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(request)
        if not answer["ok"]:
            raise RefusedError(
                f"fake cluster: {answer['what']}", why=answer["why"], hint=f"{self.bin_dir}/squeue shows what there is"
            )
        return answer

    def _config(self) -> dict[str, Any] | None:
        try:
            config: dict[str, Any] = json.loads((self.state_dir / "cluster.json").read_text())
        except FileNotFoundError:
            return None
        return config

    def _ask(self, request: dict[str, Any], *, timeout_s: float = 10.0) -> dict[str, Any]:
        config = self._config()
        if config is None:
            raise self._unreachable()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            try:
                connection.connect(config["socket"])
                connection.sendall(wire.encode([b"verb", json.dumps(request).encode()]))
                decoder = wire.Decoder()
                while data := connection.recv(1 << 16):
                    for frame in decoder.feed(data):
                        answer: dict[str, Any] = json.loads(frame[-1])
                        return answer
            except OSError:
                raise self._unreachable() from None
        raise self._unreachable()

    def _unreachable(self) -> UnreachableError:
        return UnreachableError(
            f"fake cluster in {self.state_dir}",
            why="its controller does not answer",
            hint="rlaunch fake up, or rlaunch fake controller-up",
        )
