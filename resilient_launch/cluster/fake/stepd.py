"""slurmstepd: one process per step and node. It starts the tasks, signals them, and reports how each one ended.

It outlives the controller: the result is written beside its launch file (``.done``), whoever listens. Being a child
subreaper, it keeps every process of its step below itself, however often they fork.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from resilient_launch.cluster.fake import proctree, wire

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_RECONNECT_MAX_S = 0.5
_KILL_DEADLINE_S = 20.0
_IO_FAILURE = 53
"""The status (as if of a signal) that Slurm gives a task whose files can't be opened."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


def main() -> None:
    """Entry: the launch file's path is the one argument."""
    path = sys.argv[1]
    with open(path, encoding="utf-8") as launch:  # noqa: PTH123
        spec = json.load(launch)
    if not _claim(path.removesuffix(".json") + ".pid"):
        return
    os.environ.clear()
    library = ctypes.CDLL(None)
    library.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    library.prctl(_PR_SET_NAME, b"slurmstepd", 0, 0, 0)
    supervisor = Stepd(path.removesuffix(".json"), spec)
    supervisor.run()
    # The connection must close with the process, not before (so the name above): its end says that nothing is left.
    os._exit(0)


def _claim(path: str) -> bool:
    """Whether this is the first supervisor of its launch file: a controller that died half-way may start a second."""
    text = f"{os.getpid()} {proctree.start_ticks(os.getpid())}\n".encode()
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, _CREATE | os.O_EXCL, 0o600)
    os.write(fd, text)
    os.close(fd)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(temporary)  # noqa: PTH108
    return True


class Stepd:
    """The supervisor's loop."""

    def __init__(self, base: str, spec: dict[str, Any]) -> None:
        self._base, self._spec = base, spec
        self._tasks: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._group = 0
        self._said = False
        self._labels: dict[int, Labeller] = {}
        self._connection: socket.socket | None = None
        self._decoder = wire.Decoder()
        self._retry_at, self._retry_s = 0.0, 0.02
        self._stderr = 2
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def run(self) -> None:
        self._start()
        self._connect()
        while self._tasks:
            self._turn()
        self._sweep()
        for labeller in self._labels.values():
            labeller.finish()
        self._finish()

    def _start(self) -> None:
        try:
            os.chdir(self._spec["cwd"])
        except OSError as error:
            os.chdir("/tmp")
            problem = f"error: couldn't chdir to `{self._spec['cwd']}': {error.strerror}: going to /tmp instead"
        else:
            problem = ""
        os.umask(self._spec["umask"])
        for handle in self._spec["handles"]:
            os.set_inheritable(handle, False)
        for index, task in enumerate(self._spec["tasks"]):
            try:
                handles = self._open(task)
            except OSError:
                self._statuses[index] = _IO_FAILURE
                continue
            if index == 0:
                self._stderr = fcntl.fcntl(handles[2], fcntl.F_DUPFD_CLOEXEC, 3)
                if problem:
                    self._say(problem)
            if task["label"]:
                handles[1:] = [self._label(task["label"], handle) for handle in handles[1:]]
            self._spawn(index, task, handles)
            for handle in handles:
                os.close(handle)
        for handle in self._spec["handles"]:
            os.close(handle)

    def _open(self, task: dict[str, Any]) -> list[int]:
        """The task's three files. A number stands for a handle that srun passed on."""
        handles: list[int] = []
        for number, target in enumerate((task["stdin"], task["stdout"], task["stderr"])):
            if isinstance(target, int):
                handles.append(os.dup(target))
            elif number == 0:
                handles.append(os.open(target, os.O_RDONLY | os.O_CLOEXEC))
            elif number == 2 and target == task["stdout"]:
                handles.append(os.dup(handles[1]))
            else:
                # O_APPEND in both modes: several tasks, and a step's own messages, may share one file.
                truncate = 0 if task["append"] else os.O_TRUNC
                handles.append(os.open(target, _CREATE | os.O_APPEND | truncate, 0o666))
        return handles

    def _label(self, label: str, target: int) -> int:
        """A pipe whose lines reach ``target`` with the task's number in front; the labeller closes ``target``."""
        read, write = os.pipe()
        self._labels[read] = Labeller(read, target, f"{label}: ".encode())
        return write

    def _spawn(self, index: int, task: dict[str, Any], handles: list[int]) -> None:
        actions = [(os.POSIX_SPAWN_DUP2, handle, number) for number, handle in enumerate(handles)]
        argv = task["argv"]
        try:
            pid = os.posix_spawn(
                _resolve(argv[0], task["env"].get("PATH", os.defpath)),
                argv,
                task["env"],
                file_actions=actions,
                setpgroup=self._group,
                setsigmask=(),
                setsigdef=[number for number in range(1, 65) if number not in (9, 19, 32, 33)],
            )
        except OSError as error:
            self._say(f"error: execve(): {argv[0]}: {error.strerror}")
            self._statuses[index] = (2 if isinstance(error, FileNotFoundError) else 13) << 8
            return
        self._group = self._group or pid
        self._tasks[pid] = index

    def _turn(self) -> None:
        """Wait for a child, a word from the controller or the time to look for it again."""
        timeout = None
        if self._connection is None:
            timeout = max(0.0, self._retry_at - time.monotonic())
        watched: list[Any] = [self._wake, *self._labels]
        if self._connection is not None:
            watched.append(self._connection)
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._wake in ready:
            _drain(self._wake)
        for read in [read for read in ready if read in self._labels]:
            if not self._labels[read].copy():
                self._labels.pop(read).finish()
        self._reap()
        if self._connection is not None and self._connection in ready:
            self._receive()
        elif self._connection is None and time.monotonic() >= self._retry_at:
            self._connect()

    def _reap(self) -> None:
        ended = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._tasks:
                index = self._tasks.pop(pid)
                self._statuses[index] = ended[index] = status
        if ended:
            self._tell("exit", statuses=ended)

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._spec["socket"])
        except OSError:
            connection.close()
            if not os.path.exists(self._base + ".json"):  # noqa: PTH110
                # The whole state directory is gone: nobody will ever ask again.
                self._sweep()
            self._retry_at = time.monotonic() + self._retry_s
            self._retry_s = min(self._retry_s * 2, _RECONNECT_MAX_S)
            return
        self._connection, self._decoder, self._retry_s = connection, wire.Decoder(), 0.02
        self._tell("hello", pid=os.getpid(), statuses=self._statuses)

    def _receive(self) -> None:
        assert self._connection is not None
        try:
            data = self._connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._connection.close()
            self._connection = None
            self._retry_at = time.monotonic()
            return
        for frame in self._decoder.feed(data):
            order = json.loads(frame[1])
            if order["do"] == "say":
                if not self._said:
                    self._said = True
                    self._say(order["text"])
            elif order["do"] == "kill":
                self._sweep()
            else:
                self._signal(order["signum"], order["scope"])

    def _signal(self, signum: int, scope: str) -> None:
        if scope == "tree":
            proctree.send(proctree.descendants(os.getpid()), signum)
        elif scope == "task":
            proctree.send(list(self._tasks), signum)
        elif scope == "group":
            proctree.send([-self._group] if self._group and self._tasks else [], signum)
        else:
            proctree.send([pid for pid, index in self._tasks.items() if index == 0], signum)

    def _sweep(self) -> None:
        """KILL until nothing is left below; forks in between are caught by looking again."""
        deadline = time.monotonic() + _KILL_DEADLINE_S
        while True:
            left = proctree.descendants(os.getpid())
            proctree.send(left, signal.SIGKILL)
            self._reap()
            if not left or time.monotonic() > deadline:
                return
            select.select([self._wake], [], [], 0.01)
            _drain(self._wake)

    def _finish(self) -> None:
        """Leave the result. The controller reads it when this process's end closes the connection, and not before."""
        result = json.dumps({"statuses": self._statuses}).encode()
        try:
            fd = os.open(f"{self._base}.done.tmp", _CREATE | os.O_TRUNC, 0o600)
            os.write(fd, result)
            os.close(fd)
            os.rename(f"{self._base}.done.tmp", f"{self._base}.done")  # noqa: PTH104
        except OSError:
            # The state directory is gone, and with it everybody who would read this.
            return
        if self._connection is None:
            # A controller that has just come up may be waiting for this very supervisor.
            self._connect()

    def _tell(self, kind: str, **values: Any) -> None:
        if self._connection is not None:
            body = json.dumps({"key": self._spec["key"], "kind": kind, **values}).encode()
            try:
                self._connection.sendall(wire.encode([b"stepd", body]))
            except OSError:
                # The reading side notices the lost connection and asks again; the .done file is the word that counts.
                return

    def _say(self, text: str) -> None:
        line = f"slurmstepd: {text}\n".encode(errors="surrogateescape")
        try:
            os.write(self._stderr, line)
        except OSError:
            return


class Labeller:
    """Copies one output of one task line by line, the label in front (``srun --label``)."""

    def __init__(self, read: int, target: int, label: bytes) -> None:
        self._read, self._target, self._label = read, target, label
        self._rest = b""
        os.set_blocking(read, False)

    def copy(self) -> bool:
        """Pass on the lines that have come; False at the end of the output."""
        try:
            data = os.read(self._read, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._write(b"".join(self._label + line + b"\n" for line in lines))
        return bool(data)

    def finish(self) -> None:
        """Pass on what is left. Every writer is gone."""
        os.set_blocking(self._read, True)
        while self.copy():
            pass
        if self._rest:
            self._write(self._label + self._rest + b"\n")
        os.close(self._read)
        os.close(self._target)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._target, data) :]
        except OSError:
            # Nobody reads any more; the task must not notice.
            return


def _resolve(name: str, path: str) -> str:
    """The file that a command's name means, looked up in the task's own PATH."""
    if "/" in name:
        return name
    for directory in path.split(":"):
        candidate = os.path.join(directory or ".", name)  # noqa: PTH118
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):  # noqa: PTH112
            return candidate
    return name


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        return


if __name__ == "__main__":
    main()
