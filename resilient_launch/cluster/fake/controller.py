"""The controller: one process, one loop. It sleeps until a socket speaks, a child ends or a deadline comes.

Every turn runs in the same order: take in what came, apply the clock, schedule, commit, then carry out orders and
answer. So nothing is started or promised that a kill could undo.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from resilient_launch.cluster.fake import admission, clock, proctree, verbs, wire
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
from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import JobState, exit_code
from resilient_launch.cluster.fake.orders import Order
from resilient_launch.cluster.fake.server import Connection, Server
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.cluster.fake.srun_session import SrunSession
from resilient_launch.cluster.fake.supervisors import Supervisors

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
_DOWN_S = 25.0
_ALREADY_RUNNING = 3


class Controller:
    """Owns the state directory while it lives. Raises BlockingIOError where another one does."""

    def __init__(self, state_dir: Path, *, idle_exit_s: float | None) -> None:
        config = json.loads((state_dir / "cluster.json").read_text())
        self._lock = os.open(state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(self._lock, 0)
        os.write(self._lock, f"{os.getpid()} {proctree.start_ticks(os.getpid())}".encode())
        self._idle_exit_s = idle_exit_s
        self._spec = FakeSpec.from_dict(config["spec"])
        self._database = Database(state_dir / "state.db")
        self._life = Lifecycle(self._spec, self._database)
        self._launcher = Launcher(
            self._spec, state_dir / "spool", config["socket"], state_dir / "bin", config["cluster_id"]
        )
        self._supervisors = Supervisors(self._life, self._launcher)
        self._server = Server(
            Path(config["socket"]), on_frame=self._take, on_drop=self._dropped, on_child=self._child_ended
        )
        self._last_talk = time.monotonic()
        self._now = time.time()
        self._stopping = False
        if self._database.meta("started") is None:
            self._database.set_meta("started", str(self._now))
            self._database.set_meta("state_dir", str(state_dir))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for number in (signal.SIGPIPE, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def run(self) -> None:
        """Serve until told to stop, or until nothing has happened for ``idle_exit_s``. Jobs outlive the controller."""
        self._life.orders.now = self._now
        self._supervisors.adopt(self._now)
        self._settle()
        while not (self._stopping or self._is_idle()):
            self._server.wait(self._timeout())
            self._tick()
            self._supervisors.give_up(self._now)
            clock.tick(self._life, self._now)
            self._settle()
        self._server.close()
        self._database.commit()
        self._database.close()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _tick(self) -> None:
        self._now = time.time()
        self._life.orders.now = self._now

    def _settle(self) -> None:
        """Schedule, commit and carry out until nothing more follows; then answer."""
        while True:
            if self._life.must_schedule:
                self._life.must_schedule = False
                admission.schedule(self._life, self._now)
            orders = self._life.orders.take()
            changed, self._life.changed = self._life.changed, set()
            for job_id in changed & self._life.jobs.keys():
                self._database.save_job(self._life.jobs[job_id])
            self._database.commit()
            for order in orders:
                self._carry_out(order)
            if not (self._life.orders or self._life.must_schedule or self._life.changed):
                break
        self._server.flush()

    def _timeout(self) -> float:
        deadlines = [*clock.deadlines(self._life), *self._supervisors.deadlines()]
        wait_s = min(deadlines, default=self._now + _MAX_SLEEP_S) - time.time()
        if self._idle_exit_s is not None and not self._is_busy():
            wait_s = min(wait_s, self._last_talk + self._idle_exit_s - time.monotonic())
        # A hair late rather than early: an early wake-up would find nothing due and spin.
        return max(0.0, min(wait_s + 0.0005, _MAX_SLEEP_S))

    def _is_busy(self) -> bool:
        return bool(self._supervisors) or any(not job.is_over for job in self._life.jobs.values())

    def _is_idle(self) -> bool:
        if self._idle_exit_s is None or self._is_busy():
            return False
        return time.monotonic() - self._last_talk >= self._idle_exit_s

    # -- what clients ask

    def _take(self, connection: Connection, frame: list[bytes]) -> None:
        self._tick()
        kind = frame[0]
        if kind == b"stepd":
            self._supervisors.hear(connection, json.loads(frame[1]), self._now)
            return
        self._last_talk = time.monotonic()
        if kind == b"command":
            self._command(connection, frame)
        elif kind == b"signal" and connection.session is not None:
            found = self._supervisors.step(connection.session.key)
            if found is not None and found[1].end is None and not self._is_cut_off(connection):
                connection.session.forward(self._life, *found, int(frame[1]), connection.send)
        elif kind == b"resume":
            connection.node = os.fsdecode(frame[2])
            if self._is_cut_off(connection):
                connection.closing = True
            else:
                self._wait(connection, os.fsdecode(frame[1]))
        elif kind == b"verb":
            self._verb(connection, json.loads(frame[1]))

    def _command(self, connection: Connection, frame: list[bytes]) -> None:
        _, name, cwd, arguments, environment, script = frame
        uid, gid = connection.peer()
        call = Call(
            name=os.fsdecode(name),
            arguments=wire.split(arguments),
            cwd=os.fsdecode(cwd),
            environment=wire.split(environment),
            uid=uid,
            gid=gid,
            script=os.fsdecode(script[1:]) if script else None,
        )
        connection.node = verbs.node_of(call)
        if self._is_cut_off(connection):
            connection.closing = True
            return
        context = Context(life=self._life, launcher=self._launcher, now=self._now)
        try:
            reply = _COMMANDS[call.name](context, call)
        except CommandError as error:
            reply = Reply(code=error.code, err=error.text)
        except Exception:
            # A mistake of ours in one command must not take every job's controller down.
            traceback.print_exc()
            reply = Reply(code=1, err=f"{call.name}: error: Unspecified error\n")
        if reply.delay_s:
            connection.send(b"sleep", str(reply.delay_s).encode())
        if reply.err:
            connection.send(b"err", os.fsencode(reply.err))
        if reply.out:
            connection.send(b"out", os.fsencode(reply.out))
        if reply.read is not None:
            connection.send(b"read", os.fsencode(reply.read))
        elif reply.wait:
            connection.send(b"token", os.fsencode(reply.wait))
            if reply.wait.startswith("step:"):
                self._supervisors.keep_handles(reply.wait.removeprefix("step:"), connection.handles)
                connection.handles = []
            self._wait(connection, reply.wait)
        else:
            connection.finish(b"exit", str(reply.code).encode())

    def _is_cut_off(self, connection: Connection) -> bool:
        node = self._life.nodes.get(connection.node)
        return node is not None and node.isolated

    def _wait(self, connection: Connection, token: str) -> None:
        connection.wait = token
        kind, _, key = token.partition(":")
        if kind == "step":
            connection.session = SrunSession(key)
            self._tell_srun(connection)
        else:
            self._tell_waiter(connection, int(key))

    def _tell_waiter(self, connection: Connection, job_id: int) -> None:
        """sbatch --wait ends with its job's exit code."""
        job = self._life.jobs.get(job_id)
        if job is not None and not job.is_over:
            return
        code = exit_code(job.exit_status) if job is not None else 1
        if job is not None and not code and job.state is not JobState.COMPLETED:
            code = 1
        connection.finish(b"exit", str(code).encode())

    def _tell_srun(self, connection: Connection, *, aborted: bool = False) -> None:
        if connection.session is None or connection.closing or self._is_cut_off(connection):
            return
        found = self._supervisors.step(connection.session.key)
        if found is None:
            connection.finish(b"exit", b"1")
            return
        code = connection.session.report(self._spec, *found, connection.send, aborted=aborted)
        if code is not None:
            connection.finish(b"exit", str(code).encode())

    def _dropped(self, connection: Connection) -> None:
        self._tick()
        self._supervisors.disconnected(connection, self._now)

    def _child_ended(self) -> None:
        self._tick()
        self._supervisors.reap(self._now)

    def _verb(self, connection: Connection, request: dict[str, Any]) -> None:
        if request["verb"] == "shutdown":
            self._shut_down(connection)
            return
        if request["verb"] == "stop":
            # Jobs live on under their supervisors, as they do on a cluster whose controller is gone.
            self._stopping = True
            connection.finish(b"reply", json.dumps({"ok": True}).encode())
            return
        connection.finish(b"reply", json.dumps(verbs.run(self._life, request, self._now)).encode())

    def _shut_down(self, asker: Connection) -> None:
        """End every job for good, and stop once nothing of them is left. Runs at most once."""
        if self._stopping:
            return
        self._stopping = True
        self._life.abandon(self._now)
        self._supervisors.kill_all()
        self._settle()
        deadline = time.monotonic() + _DOWN_S
        while self._supervisors and time.monotonic() < deadline:
            self._server.wait(min(1.0, deadline - time.monotonic()))
            self._supervisors.give_up(self._now)
            self._supervisors.kill_all()
            self._settle()
        proctree.kill_marked(self._launcher.marker(), timeout_s=5.0)
        asker.finish(b"reply", json.dumps({"ok": True}).encode())

    # -- orders

    def _carry_out(self, order: Order) -> None:
        if order.do == "launch":
            self._supervisors.launch(order.key, self._now)
        elif order.do == "job":
            for connection in list(self._server.connections):
                if connection.wait == f"job:{order.key}":
                    self._tell_waiter(connection, int(order.key))
            job = self._life.jobs.get(int(order.key))
            for run in range(job.run + 1 if job is not None else 0):
                self._launcher.forget(f"{order.key}.{run}")
        elif order.do == "step":
            for connection in list(self._server.connections):
                if connection.wait == f"step:{order.key}":
                    self._tell_srun(connection, aborted=order.text == "aborted")
        elif order.do == "purge":
            self._supervisors.purge(order.key)
        else:
            self._supervisors.order(order)


def main() -> None:
    """Entry of the daemon: state directory and idle time (empty for none)."""
    state_dir, idle = sys.argv[1:3]
    try:
        controller = Controller(Path(state_dir), idle_exit_s=float(idle) if idle else None)
    except BlockingIOError:
        os._exit(_ALREADY_RUNNING)
    controller.run()
