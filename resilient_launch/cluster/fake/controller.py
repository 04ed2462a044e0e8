"""The controller: one process, one loop. It sleeps until a socket speaks, a child ends or a deadline comes.

Every turn runs in the same order: take in what came, apply the clock, schedule, commit, then carry out orders and answer.
So nothing is started or promised that a kill could undo.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient_launch.cluster.fake import admission, proctree, verbs, wire
from resilient_launch.cluster.fake.commands import (
    Call,
    CommandError,
    Context,
    Reply,
    sacct,
    sbatch,
    scancel,
    scontrol,
    sinfo,
    squeue,
    srun,
)
from resilient_launch.cluster.fake.db import Database
from resilient_launch.cluster.fake.launch import Launcher
from resilient_launch.cluster.fake.lifecycle import Lifecycle, Order
from resilient_launch.cluster.fake.model import Job, Step, StepNode, exit_code
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.cluster.fake.srun_session import SrunSession

_COMMANDS = {
    "sacct": sacct.run,
    "sbatch": sbatch.run,
    "scancel": scancel.run,
    "scontrol": scontrol.run,
    "sinfo": sinfo.run,
    "squeue": squeue.run,
    "srun": srun.run,
}
_MAX_SLEEP_S = 3600.0
_ADOPT_S = 10.0
_DOWN_S = 25.0


@dataclass(eq=False)
class Connection:
    """One client: a command, a supervisor or the facade."""

    sock: socket.socket
    decoder: wire.Decoder = field(default_factory=wire.Decoder)
    out: bytearray = field(default_factory=bytearray)
    handles: list[int] = field(default_factory=list)
    key: str = ""
    wait: str = ""
    session: SrunSession | None = None
    closing: bool = False

    def send(self, *fields: bytes) -> None:
        self.out += wire.encode(fields)


class Controller:
    """Owns the state directory while it lives."""

    def __init__(self, state_dir: Path, *, idle_exit_s: float | None) -> None:
        self._dir, self._idle_exit_s = state_dir, idle_exit_s
        config = json.loads((state_dir / "cluster.json").read_text())
        self.spec = FakeSpec.from_dict(config["spec"])
        self._socket_path: str = config["socket"]
        self._lock = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._database = Database(state_dir / "state.db")
        self.life = Lifecycle(self.spec, self._database)
        self.launcher = Launcher(
            self.spec, state_dir / "spool", self._socket_path, state_dir / "bin", config["cluster_id"]
        )
        self._selector = selectors.DefaultSelector()
        self._connections: set[Connection] = set()
        self._stepds: dict[str, Connection] = {}
        self._handles: dict[str, list[int]] = {}
        self._children: dict[int, str] = {}
        self._adopt_until: dict[str, float] = {}
        self._last_talk = time.monotonic()
        self._stopping = False

    # -- the loop

    def run(self) -> None:
        """Serve until told to stop, or until nothing has happened for ``idle_exit_s``."""
        self._listen()
        self._adopt()
        while True:
            self._turn()
            if self._stopping or self._is_idle():
                break
        self._close()

    def _listen(self) -> None:
        Path(self._socket_path).unlink(missing_ok=True)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(self._socket_path)
        Path(self._socket_path).chmod(0o600)
        server.listen(512)
        server.setblocking(False)
        self._server = server
        self._selector.register(server, selectors.EVENT_READ, "server")
        self._wake, write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        self._selector.register(self._wake, selectors.EVENT_READ, "wake")
        if self._database.meta("started") is None:
            self._database.set_meta("started", str(time.time()))
            self._database.set_meta("state_dir", str(self._dir))

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _turn(self) -> None:
        events = self._selector.select(self._timeout())
        now = time.time()
        self.life.at(now)
        for key, mask in events:
            if key.data == "server":
                self._accept()
            elif key.data == "wake":
                _drain(self._wake)
                self._reap(now)
            else:
                if mask & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if mask & selectors.EVENT_READ and key.data in self._connections:
                    self._read(key.data, now)
        self._give_up_on_lost(now)
        self.life.tick(now)
        self._settle(now)

    def _settle(self, now: float) -> None:
        """Schedule, commit and carry out until nothing more follows."""
        while True:
            if self.life.must_schedule:
                self.life.must_schedule = False
                admission.schedule(self.life, now)
            orders, self.life.orders = self.life.orders, []
            changed, self.life.changed = self.life.changed, set()
            for job_id in changed:
                if job_id in self.life.jobs:
                    self._database.save_job(self.life.jobs[job_id])
            self._database.commit()
            for order in orders:
                self._carry_out(order, now)
            if not (self.life.orders or self.life.must_schedule or self.life.changed):
                break
        for connection in list(self._connections):
            if connection.out or connection.closing:
                self._flush(connection)

    def _timeout(self) -> float:
        deadlines = [*self.life.deadlines(), *self._adopt_until.values()]
        wait_s = min(deadlines, default=time.time() + _MAX_SLEEP_S) - time.time()
        if self._idle_exit_s is not None and not self._is_busy():
            wait_s = min(wait_s, self._last_talk + self._idle_exit_s - time.monotonic())
        # A hair late rather than early: an early wake-up would find nothing due and spin.
        return max(0.0, min(wait_s + 0.0005, _MAX_SLEEP_S))

    def _is_busy(self) -> bool:
        return any(not job.is_over for job in self.life.jobs.values()) or bool(self._stepds)

    def _is_idle(self) -> bool:
        if self._idle_exit_s is None or self._is_busy():
            return False
        return time.monotonic() - self._last_talk >= self._idle_exit_s

    def _close(self) -> None:
        self._database.commit()
        self._database.close()
        Path(self._socket_path).unlink(missing_ok=True)

    # -- sockets

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except BlockingIOError:
                return
            sock.setblocking(False)
            connection = Connection(sock)
            self._connections.add(connection)
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read(self, connection: Connection, now: float) -> None:
        try:
            data, control, _, _ = connection.sock.recvmsg(1 << 18, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            data, control = b"", []
        for level, kind, body in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                handles = array.array("i")
                handles.frombytes(body[: len(body) - len(body) % handles.itemsize])
                connection.handles.extend(handles)
        if not data:
            self._drop(connection, now)
            return
        try:
            for frame in connection.decoder.feed(data):
                self._take(connection, frame, now)
        except (ValueError, KeyError, IndexError) as error:
            # Only a broken client sends this; it loses its connection, and nobody else notices.
            connection.send(b"err", f"slurmctld: bad request: {error!r}\n".encode())
            connection.closing = True

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                del connection.out[: connection.sock.send(connection.out)]
        except BlockingIOError:
            pass
        except OSError:
            connection.out.clear()
            connection.closing = True
        if connection.closing and not connection.out:
            self._drop(connection, time.time())
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.out else 0)
        self._selector.modify(connection.sock, events, connection)

    def _drop(self, connection: Connection, now: float) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        for handle in connection.handles:
            os.close(handle)
        connection.handles.clear()
        if connection.key and self._stepds.get(connection.key) is connection:
            del self._stepds[connection.key]
            self._supervisor_gone(connection.key, now)
        if connection.session is not None and not connection.closing:
            found = self._step(connection.session.key)
            if found is not None and found[1].end is None:
                # An srun that was killed takes its tasks along.
                self.life.signal_step(*found, signal.SIGKILL)

    # -- what clients ask

    def _take(self, connection: Connection, frame: list[bytes], now: float) -> None:
        kind = frame[0]
        if kind == b"stepd":
            self._hear(connection, json.loads(frame[1]), now)
            return
        self._last_talk = time.monotonic()
        if kind == b"command":
            self._command(connection, frame, now)
        elif kind == b"signal" and connection.session is not None:
            found = self._step(connection.session.key)
            if found is not None and found[1].end is None:
                connection.session.forward(self.life, *found, int(frame[1]), connection.send)
        elif kind == b"resume":
            self._wait(connection, os.fsdecode(frame[1]))
        elif kind == b"verb":
            self._verb(connection, json.loads(frame[1]), now)

    def _command(self, connection: Connection, frame: list[bytes], now: float) -> None:
        _, name, cwd, arguments, environment, script = frame
        credentials = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, gid = array.array("i", credentials)
        call = Call(
            name=os.fsdecode(name),
            arguments=wire.split(arguments),
            cwd=os.fsdecode(cwd),
            environment=wire.split(environment),
            uid=uid,
            gid=gid,
            script=os.fsdecode(script[1:]) if script else None,
        )
        if verbs.is_cut_off(self.life, call):
            connection.closing = True
            return
        context = Context(life=self.life, launcher=self.launcher, now=now)
        try:
            reply = _COMMANDS[call.name](context, call)
        except CommandError as error:
            reply = Reply(code=error.code, err=error.text)
        if reply.err:
            connection.send(b"err", os.fsencode(reply.err))
        if reply.out:
            connection.send(b"out", os.fsencode(reply.out))
        if reply.read is not None:
            connection.send(b"read", os.fsencode(reply.read))
            return
        if reply.wait:
            connection.send(b"token", os.fsencode(reply.wait))
            if reply.wait.startswith("step:"):
                self._handles[reply.wait.removeprefix("step:")] = connection.handles
                connection.handles = []
            self._wait(connection, reply.wait)
            return
        connection.send(b"exit", str(reply.code).encode())
        connection.closing = True

    def _wait(self, connection: Connection, token: str) -> None:
        kind, _, key = token.partition(":")
        connection.wait = token
        if kind == "step":
            connection.session = SrunSession(key)
            self._tell_srun(connection)
            return
        self._tell_waiter(connection, key)

    def _tell_waiter(self, connection: Connection, key: str) -> None:
        """sbatch --wait ends with its job's exit code."""
        job = self.life.jobs.get(int(key))
        if job is None or job.is_over:
            code = exit_code(job.exit_status) if job is not None else 1
            if job is not None and not job.exit_status and job.state.value != "COMPLETED":
                code = 1
            connection.send(b"exit", str(code).encode())
            connection.closing = True

    def _tell_srun(self, connection: Connection, *, aborted: bool = False) -> None:
        assert connection.session is not None
        found = self._step(connection.session.key)
        if found is None:
            connection.send(b"exit", b"1")
            connection.closing = True
            return
        code = connection.session.report(self.spec, *found, connection.send, aborted=aborted)
        if code is not None:
            connection.send(b"exit", str(code).encode())
            connection.closing = True

    def _verb(self, connection: Connection, request: dict[str, Any], now: float) -> None:
        if request["verb"] == "shutdown":
            self._shut_down()
            answer: dict[str, Any] = {"ok": True}
        else:
            answer = verbs.run(self.life, request, now)
        connection.send(b"reply", json.dumps(answer).encode())
        connection.closing = True

    def _shut_down(self) -> None:
        """KILL everything, wait for the supervisors to be gone, and stop."""
        for connection in self._stepds.values():
            connection.send(b"order", json.dumps({"do": "kill"}).encode())
            self._flush(connection)
        deadline = time.monotonic() + _DOWN_S
        while self._stepds and time.monotonic() < deadline:
            self._selector_wait_for_stepds(deadline)
        proctree.kill_marked(self.launcher.marker(), timeout_s=5.0)
        self._stopping = True

    def _selector_wait_for_stepds(self, deadline: float) -> None:
        for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
            connection = key.data
            if key.data == "wake":
                _drain(self._wake)
            if not isinstance(connection, Connection) or not connection.key:
                continue
            with contextlib.suppress(BlockingIOError):
                try:
                    data = connection.sock.recv(1 << 16)
                except ConnectionError:
                    data = b""
                if not data:
                    del self._stepds[connection.key]
                    connection.key = ""
                    self._selector.unregister(connection.sock)
                    self._connections.discard(connection)
                    connection.sock.close()

    # -- supervisors

    def _hear(self, connection: Connection, word: dict[str, Any], now: float) -> None:
        key = word["key"]
        statuses = {int(index): status for index, status in word.get("statuses", {}).items()}
        found = self._place(key)
        if word["kind"] == "hello":
            connection.key = key
            self._stepds[key] = connection
            self._adopt_until.pop(key, None)
            if found is None and not self._is_on_isolated_node(key):
                connection.send(b"order", json.dumps({"do": "kill"}).encode())
        if found is None or found[2].lost:
            return
        if word["kind"] == "done":
            self.life.place_done(*found, statuses, now)
        elif statuses:
            self.life.task_ended(*found, statuses)

    def _supervisor_gone(self, key: str, now: float) -> None:
        """A supervisor's connection ended: it finished, or something killed it."""
        found = self._place(key)
        if found is None or found[2].done or found[2].lost:
            return
        statuses = self.launcher.result(key)
        if statuses is None and self.launcher.is_alive(key):
            self._adopt_until[key] = now + _ADOPT_S
            return
        self._supervisor_lost(key, statuses, now)

    def _supervisor_lost(self, key: str, statuses: dict[int, int] | None, now: float) -> None:
        found = self._place(key)
        self._adopt_until.pop(key, None)
        if found is None or found[2].done or found[2].lost:
            return
        if statuses is None:
            proctree.kill_marked(self.launcher.marker(key), timeout_s=5.0)
            killed = dict.fromkeys(range(found[2].num_tasks), int(signal.SIGKILL))
            statuses = {**killed, **found[2].statuses}
        self.life.place_done(*found, statuses, now)

    def _adopt(self) -> None:
        """After a restart: hear from the supervisors that live, count the ones that ended, start those never started."""
        now = time.time()
        self.life.at(now)
        for job in list(self.life.jobs.values()):
            for step in list(job.active_steps()):
                for place in step.nodes:
                    if not (place.done or place.lost):
                        self._adopt_place(job, step, place, now)
        self._settle(now)

    def _adopt_place(self, job: Job, step: Step, place: StepNode, now: float) -> None:
        key = f"{job.run_key}.{step.name}.{place.node}"
        statuses = self.launcher.result(key)
        if statuses is not None:
            self._supervisor_lost(key, statuses, now)
        elif self.launcher.is_alive(key):
            self._adopt_until[key] = now + _ADOPT_S
        elif not self.launcher.was_claimed(key) and step.is_batch:
            self.life.orders.append(Order(do="launch", key=key))
        else:
            self._supervisor_lost(key, None, now)

    def _give_up_on_lost(self, now: float) -> None:
        for key, until in list(self._adopt_until.items()):
            if now >= until:
                self._supervisor_lost(key, self.launcher.result(key), now)

    def _reap(self, now: float) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self._children.pop(pid, None)
            if key is not None and key not in self._stepds:
                self._supervisor_gone(key, now)

    # -- orders

    def _carry_out(self, order: Order, now: float) -> None:
        if order.do == "launch":
            self._launch(order.key, now)
        elif order.do == "job":
            for connection in list(self._connections):
                if connection.wait == f"job:{order.key}":
                    self._tell_waiter(connection, order.key)
            self._forget_spool(int(order.key))
        elif order.do == "step":
            for connection in list(self._connections):
                if connection.session is not None and connection.session.key == order.key and not connection.closing:
                    self._tell_srun(connection, aborted=order.text == "aborted")
        elif order.do == "purge":
            for key, stepd in self._stepds.items():
                found = self._place(key)
                if key.endswith(f".{order.key}") and (found is None or found[2].lost):
                    stepd.send(b"order", json.dumps({"do": "kill"}).encode())
        elif order.key in self._stepds:
            body = {"do": order.do, "signum": order.signum, "scope": order.scope, "text": order.text}
            self._stepds[order.key].send(b"order", json.dumps(body).encode())

    def _launch(self, key: str, now: float) -> None:
        found = self._place(key)
        if found is None:
            return
        job, step, place = found
        step_key = f"{job.run_key}.{step.name}"
        if step.is_batch:
            self.launcher.write_batch(job, step)
        handles = self._handles.get(step_key, [])
        self._children[self.launcher.spawn(key, handles)] = key
        self._adopt_until[key] = now + _ADOPT_S
        if place is step.nodes[-1]:
            for handle in self._handles.pop(step_key, []):
                os.close(handle)

    def _forget_spool(self, job_id: int) -> None:
        job = self.life.jobs.get(job_id)
        if job is not None:
            for run in range(job.run + 1):
                self.launcher.forget(f"{job_id}.{run}")

    def _step(self, step_key: str) -> tuple[Job, Step] | None:
        number, run, name = step_key.split(".")
        job = self.life.jobs.get(int(number))
        step = job.step(name) if job is not None and job.run == int(run) else None
        return None if job is None or step is None else (job, step)

    def _place(self, key: str) -> tuple[Job, Step, StepNode] | None:
        step_key, _, node = key.rpartition(".")
        found = self._step(step_key)
        place = next((place for place in found[1].nodes if place.node == node), None) if found else None
        return None if found is None or place is None else (*found, place)

    def _is_on_isolated_node(self, key: str) -> bool:
        node = self.life.nodes.get(key.rpartition(".")[2])
        return node is not None and node.isolated


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass


def main() -> None:
    """Entry of the daemon: state directory and idle time (empty for none)."""
    state_dir, idle = sys.argv[1:3]
    try:
        controller = Controller(Path(state_dir), idle_exit_s=float(idle) if idle else None)
    except BlockingIOError:
        # Another controller owns the directory.
        os._exit(3)
    controller.run()


if __name__ == "__main__":
    main()
