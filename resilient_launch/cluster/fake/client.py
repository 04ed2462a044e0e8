"""What every command on PATH runs: it hands its arguments to the controller and prints what comes back.

Start-up must stay close to a bare Python, so nothing but sys, os and built-in C modules is imported unless needed;
``_socket`` is what ``socket`` itself wraps, without the 8 ms that its enums cost.
"""

from __future__ import annotations

import _socket
import os
import sys
import time

from resilient_launch.cluster.fake import wire

_UNREACHABLE = "Unable to contact slurm controller (connect failure)"
_DOWN = {
    "sbatch": f"sbatch: error: Batch job submission failed: {_UNREACHABLE}",
    "srun": f"srun: error: Unable to create step for job {{job}}: {_UNREACHABLE}",
    "squeue": f"slurm_load_jobs error: {_UNREACHABLE}",
    "scontrol": f"slurm_load_jobs error: {_UNREACHABLE}",
    "scancel": f"scancel: error: Kill job error on job id {{job}}: {_UNREACHABLE}",
    "sinfo": f"slurm_load_partitions: {_UNREACHABLE}",
    "sacct": f"sacct: error: slurm_persist_conn_open: {_UNREACHABLE}",
}
_RECONNECT_S = 60.0


def main() -> None:
    """Entry of the launchers in ``<state>/bin``: command name, socket path, then the user's arguments."""
    name, path, *arguments = sys.argv[1:]
    if name == "scontrol" and arguments[:1] == ["show"] and arguments[1:2] and arguments[1].startswith("hostname"):
        sys.exit(_hostnames(arguments[2:]))
    try:
        code = _Session(name, path, arguments).run()
    except BrokenPipeError:
        code = 141
    except KeyboardInterrupt:
        code = 130
    # Nothing is buffered, and the interpreter's farewell would cost as much as the work.
    os._exit(code)


def _hostnames(arguments: list[str]) -> int:
    from resilient_launch.cluster import hostlist
    from resilient_launch.core.errors import UsageError

    expression = arguments[0] if arguments else os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = hostlist.expand(expression)
    except UsageError:
        os.write(2, f"Invalid hostlist: {expression}\n".encode())
        return 1
    os.write(1, "".join(f"{name}\n" for name in names).encode())
    return 0


class _Session:
    """One command's talk with the controller."""

    def __init__(self, name: str, path: str, arguments: list[str]) -> None:
        self._name, self._path, self._arguments = name, path, arguments
        self._token = b""
        self._signals: _Forwarder | None = None

    def run(self) -> int:
        if self._name == "srun":
            self._signals = _Forwarder()
        request = self._request(b"")
        deadline = None
        while True:
            connection = self._connect()
            if connection is not None:
                deadline = None
                code = self._talk(connection, request)
                connection.close()
                if code is not None:
                    return code
            if not self._token:
                return self._unreachable()
            # The controller went away in the middle of a wait: it comes back with its state, so ask again.
            deadline = deadline or time.monotonic() + _RECONNECT_S
            if time.monotonic() > deadline:
                return self._unreachable()
            time.sleep(0.1)
            request = wire.encode([b"resume", self._token, _node()])

    def _request(self, script: bytes) -> bytes:
        environment = [f"{key}={value}" for key, value in os.environ.items()]
        if self._name == "sbatch":
            mask = os.umask(0)
            os.umask(mask)
            environment.append(f"SLURM_UMASK={mask:04o}")
        try:
            directory = os.getcwd()  # noqa: PTH109
        except FileNotFoundError:
            directory = "/"
        fields = [b"command", os.fsencode(self._name), os.fsencode(directory), wire.join(self._arguments)]
        return wire.encode([*fields, wire.join(environment), script])

    def _connect(self) -> _socket.socket | None:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        try:
            connection.connect(self._path)
        except OSError:
            connection.close()
            return None
        return connection

    def _talk(self, connection: _socket.socket, request: bytes) -> int | None:
        """The exit code, or None when the controller hung up before it named one."""
        try:
            self._send(connection, request)
            decoder = wire.Decoder()
            while True:
                if self._signals is not None:
                    self._signals.wait(connection)
                data = connection.recv(1 << 16)
                if not data:
                    return None
                for frame in decoder.feed(data):
                    code = self._handle(connection, frame)
                    if code is not None:
                        return code
        except ConnectionError:
            return None

    def _send(self, connection: _socket.socket, request: bytes) -> None:
        if self._signals is None:
            connection.sendall(request)
            return
        import array

        # The tasks write to srun's own files: it hands them over instead of copying every byte.
        handles = array.array("i", _open_handles())
        control = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, handles)]
        sent = connection.sendmsg([request], control)
        if sent < len(request):
            # Never with nothing left: an answer may have come and the connection gone, and even 0 bytes would fail.
            connection.sendall(request[sent:])

    def _handle(self, connection: _socket.socket, frame: list[bytes]) -> int | None:
        kind = frame[0]
        if kind == b"out":
            _write(1, frame[1])
        elif kind == b"err":
            _write(2, frame[1])
        elif kind == b"sleep":
            time.sleep(float(frame[1]))
        elif kind == b"token":
            self._token = frame[1]
        elif kind == b"read":
            script = _read(os.fsdecode(frame[1]))
            if script is None:
                _write(2, b"sbatch: error: Unable to open file " + frame[1] + b"\n")
                return 1
            self._send(connection, self._request(b"=" + script))
        elif kind == b"exit":
            return int(frame[1])
        return None

    def _unreachable(self) -> int:
        words = [word for word in self._arguments if word.split("_")[0].isdigit()]
        job = words[0] if words else os.environ.get("SLURM_JOB_ID", "")
        text = _DOWN[self._name]
        if self._name == "scontrol" and "ping" in self._arguments:
            _write(1, b"Slurmctld(primary) at localhost is DOWN\n")
            return 1
        if self._name == "scontrol" and "show" not in self._arguments:
            text = f"{_UNREACHABLE} for job {job}"
        _write(2, (text.replace("{job}", job) + "\n").encode())
        return 1


class _Forwarder:
    """srun's signals: caught at once, told to the controller from the main loop."""

    def __init__(self) -> None:
        import select
        import signal

        self._select = select.select
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        for number in (1, 2, 3, 10, 12, 13, 14, 15, 18):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def wait(self, connection: _socket.socket) -> None:
        """Return once the controller has something to say; pass on every signal that comes before."""
        while True:
            ready, _, _ = self._select([connection.fileno(), self._read], [], [])
            if self._read in ready:
                for number in os.read(self._read, 64):
                    connection.sendall(wire.encode([b"signal", str(number).encode()]))
            if connection.fileno() in ready:
                return


def _node() -> bytes:
    return os.environb.get(b"RLAUNCH_FAKE_STEP", b"").rpartition(b".")[2]


def _open_handles() -> list[int]:
    handles = []
    for number in (0, 1, 2):
        try:
            os.fstat(number)
            handles.append(number)
        except OSError:
            handles.append(os.open(os.devnull, os.O_RDWR))
    return handles


def _read(path: str) -> bytes | None:
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as script:
            return script.read()
    except OSError:
        return None


def _write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]
