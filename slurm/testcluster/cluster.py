#!/usr/bin/env python3
"""A real Slurm on this one machine: `up DIR` starts it, `env DIR` says how to talk to it, `down DIR` leaves nothing.

Everything it needs lives in DIR: configuration, munge key and socket, state, logs. A keeper process owns the daemons
and adopts whatever their jobs orphan, so that one process is the whole cluster's life. Root and Debian's packages
slurm-wlm and munge are needed; of Python, the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import testcluster_accounting as accounting
import testcluster_cgroups as cgroups
import testcluster_keeper as keeper
import testcluster_release as release
from testcluster_settings import ClusterSpec

_COMMANDS = {
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "srun": "slurm-wlm",
    "scontrol": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "munged": "munge",
}
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._+@/-]*")
_MAX_PATH_BYTES = 75
"""Leaves room in a unix socket's 108 bytes for the longest name under DIR: spool/n12/n12_<job id>.<step id>."""


class TestClusterError(Exception):
    """The cluster could not be started or stopped; the text says why and what to do."""

    __test__ = False


class TestCluster:
    """The cluster whose files live in ``directory``. Nothing happens before ``up``.

    ``slurm`` is a folder that testcluster_release.py has filled; without it the installed Slurm is used.
    """

    __test__ = False

    def __init__(self, directory: str | os.PathLike[str], *, slurm: str | os.PathLike[str] | None = None) -> None:
        self.directory = Path(directory).absolute()
        self.slurm = None if slurm is None else Path(slurm).absolute()

    def up(self, spec: ClusterSpec | None = None, *, until_exit_of: int | None = None, timeout_s: float = 60.0) -> None:
        """Start the cluster unless it runs, and return once every node is idle (or busy, where it ran before).

        ``until_exit_of`` is a process id; the cluster goes down by itself when that process ends. Raises
        TestClusterError when something is missing, when ``directory`` holds anything else, or at the deadline.
        """
        spec = spec or ClusterSpec()
        missing = missing_requirements(self.slurm, spec)
        if missing:
            raise TestClusterError("the test cluster needs " + "; ".join(missing))
        _check_path(self.directory)
        deadline = time.monotonic() + timeout_s
        if not self.is_running():
            self._clean()
            self._launch(spec, until_exit_of)
        while not self._nodes_ready():
            if not self.is_running():
                raise TestClusterError(f"the test cluster ended while starting{self._explain()}")
            if time.monotonic() > deadline:
                report = self._explain()
                self.down()
                raise TestClusterError(f"the test cluster's nodes were not idle within {timeout_s:g} s{report}")
            time.sleep(0.1)

    def down(self) -> None:
        """Kill every job and daemon, wait until they are gone, and remove the directory. Nothing to do is no error."""
        if not self.directory.exists():
            return
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            if self.is_running():
                os.kill(int(keeper.lock_file(self.directory).read_text()), keeper.STOP_SIGNAL)
        deadline = time.monotonic() + 30
        while self.is_running():
            if time.monotonic() > deadline:
                raise TestClusterError(f"the keeper of {self.directory} does not end")
            time.sleep(0.02)
        self._clean()
        with contextlib.suppress(FileNotFoundError):
            self.directory.rmdir()

    def env(self) -> dict[str, str]:
        """Environment variables that make Slurm's commands talk to this cluster."""
        variables = {"SLURM_CONF": str(self.directory / "slurm.conf")}
        if self.slurm is not None:
            path = os.environ.get("PATH", os.defpath)
            variables["PATH"] = os.pathsep.join((str(release.bin_dir(self.slurm)), path))
        return variables

    def is_running(self) -> bool:
        """Whether the keeper lives: it holds a lock on a file for as long as it does."""
        try:
            fd = os.open(keeper.lock_file(self.directory), os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)

    def _clean(self) -> None:
        """Remove what a cluster left in the directory, its processes first. Refuses a directory of anybody else."""
        if not self.directory.exists():
            return
        names = {path.name for path in self.directory.iterdir()}
        if names and keeper.lock_file(self.directory).name not in names:
            raise TestClusterError(f"{self.directory} is not empty and holds no test cluster; give another directory")
        keeper.kill_leftovers(self.directory)
        keeper.clear(self.directory)

    def _launch(self, spec: ClusterSpec, until_exit_of: int | None) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(keeper.lock_file(self.directory), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # The keeper inherits the lock itself, so no moment exists at which nobody holds it.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.set_inheritable(lock, True)
            order = {
                "spec": dataclasses.asdict(spec),
                "lock_fd": lock,
                "until_exit_of": until_exit_of,
                "slurm": None if self.slurm is None else str(self.slurm),
            }
            with (self.directory / "keeper.log").open("ab") as log:
                subprocess.Popen(
                    [sys.executable, str(Path(keeper.__file__).resolve()), str(self.directory), json.dumps(order)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(lock,),
                    start_new_session=True,
                    cwd="/",
                )
        except BlockingIOError:
            raise TestClusterError(f"somebody else is starting a test cluster in {self.directory}") from None
        finally:
            os.close(lock)

    def _nodes_ready(self) -> bool:
        if not (self.directory / "slurm.conf").exists():
            return False
        try:
            done = subprocess.run(
                ["sinfo", "--noheader", "--Node", "--format=%N %T"],
                env={**keeper.quiet_environment(self.slurm), **self.env()},
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        states = [line.split()[1] for line in done.stdout.splitlines() if line.strip()]
        return done.returncode == 0 and bool(states) and set(states) <= {"idle", "mixed", "allocated", "completing"}

    def _explain(self) -> str:
        """The last words of the logs, for an error's text."""
        parts = []
        for path in (self.directory / "keeper.log", *sorted((self.directory / "log").glob("*.stderr"))):
            with contextlib.suppress(OSError):
                tail = path.read_text(errors="replace").splitlines()[-5:]
                parts += [f"\n--- {path.name}", *tail] if tail else []
        return "\n".join(parts)


def missing_requirements(slurm: Path | None = None, spec: ClusterSpec | None = None) -> list[str]:
    """What this machine lacks for a test cluster, in words; empty when it can be started."""
    missing = []
    needed = dict(_COMMANDS)
    if spec is not None and spec.accounting:
        needed |= accounting.COMMANDS
    if sys.platform != "linux":
        missing.append("Linux")
    elif os.geteuid() != 0:
        missing.append("root (run it with sudo)")
    if slurm is not None and not release.is_ready(slurm):
        missing.append(f"Slurm in {slurm} (python3 {release.__file__} {slurm})")
    path = keeper.quiet_environment(slurm)["PATH"]
    absent = [command for command in needed if shutil.which(command, path=path) is None]
    if absent:
        packages = " ".join(sorted({needed[command] for command in absent}))
        missing.append(f"{', '.join(absent)} (apt-get install -y --no-install-recommends {packages})")
    return missing + (cgroups.missing() if spec is not None and spec.cgroups else [])


def _check_path(directory: Path) -> None:
    if not _PLAIN_PATH.fullmatch(str(directory)):
        raise TestClusterError(f"{str(directory)!r} holds characters that slurm.conf cannot; give a plainer directory")
    if len(os.fsencode(directory)) > _MAX_PATH_BYTES:
        raise TestClusterError(
            f"{directory} is longer than {_MAX_PATH_BYTES} bytes, too long for the sockets in it; give a shorter one"
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A real Slurm on this one machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "start it and wait until its nodes are idle"),
        ("down", "kill its jobs and daemons and remove DIR"),
        ("env", "print the export lines that make Slurm's commands use it"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("directory", metavar="DIR", type=Path)
        if name != "down":
            command.add_argument("--slurm", metavar="FOLDER", type=Path, help="of testcluster_release.py")
        if name == "up":
            for field in dataclasses.fields(ClusterSpec):
                option = "--" + field.name.removeprefix("num_").replace("_", "-")
                if isinstance(field.default, bool):
                    command.add_argument(option, dest=field.name, action="store_true")
                else:
                    command.add_argument(option, dest=field.name, type=int, default=field.default, metavar="N")
            command.add_argument("--until-exit-of", type=int, metavar="PID", help="go down when that process ends")
    options = vars(parser.parse_args(arguments))
    cluster = TestCluster(options["directory"], slurm=options.get("slurm"))
    try:
        if options["command"] == "up":
            spec = ClusterSpec(**{field.name: options[field.name] for field in dataclasses.fields(ClusterSpec)})
            cluster.up(spec, until_exit_of=options["until_exit_of"])
        elif options["command"] == "down":
            cluster.down()
        else:
            for name, value in cluster.env().items():
                sys.stdout.write(f"export {name}={shlex.quote(value)}\n")
    except TestClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
