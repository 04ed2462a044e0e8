"""The controller's view of its supervisors: started, heard from, given orders, lost, adopted after a restart."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

from resilient_launch.cluster.fake import proctree
from resilient_launch.cluster.fake.launch import Launcher
from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job, Step, StepNode
from resilient_launch.cluster.fake.orders import Order, place_key
from resilient_launch.cluster.fake.server import Connection

_ADOPT_S = 10.0
_SWEEP_S = 5.0


class Supervisors:
    """Every supervisor by its key, connected or awaited."""

    def __init__(self, life: Lifecycle, launcher: Launcher) -> None:
        self._life, self._launcher = life, launcher
        self._connected: dict[str, Connection] = {}
        self._children: dict[int, str] = {}
        self._awaited: dict[str, float] = {}
        self._waiting_orders: dict[str, list[Order]] = {}
        self._handles: dict[str, list[int]] = {}

    def __bool__(self) -> bool:
        """Whether any is there."""
        return bool(self._connected or self._awaited)

    def deadlines(self) -> Iterator[float]:
        """When ``give_up`` will have something to do."""
        return iter(self._awaited.values())

    # -- finding what a key means

    def step(self, step_key: str) -> tuple[Job, Step] | None:
        """The job and step of ``job.run.step``; None once that run is bygone."""
        number, run, name = step_key.split(".")
        job = self._life.jobs.get(int(number))
        step = job.step(name) if job is not None and job.run == int(run) else None
        return None if job is None or step is None else (job, step)

    def place(self, key: str) -> tuple[Job, Step, StepNode] | None:
        """The job, step and node of ``job.run.step.node``; None once that run is bygone."""
        step_key, _, node = key.rpartition(".")
        found = self.step(step_key)
        place = next((place for place in found[1].nodes if place.node == node), None) if found else None
        return None if found is None or place is None else (*found, place)

    # -- starting

    def keep_handles(self, step_key: str, handles: list[int]) -> None:
        """srun's own files, until the step's supervisors have them."""
        self._handles[step_key] = handles

    def launch(self, key: str, now: float) -> None:
        """Start the supervisor of one step on one node."""
        found = self.place(key)
        if found is None:
            return
        job, step, place = found
        step_key = f"{job.run_key}.{step.name}"
        if step.is_batch:
            self._launcher.write_batch(job, step)
        self._children[self._launcher.spawn(key, self._handles.get(step_key, []))] = key
        self._awaited[key] = now + _ADOPT_S
        if place is step.nodes[-1]:
            for handle in self._handles.pop(step_key, []):
                os.close(handle)

    def adopt(self, now: float) -> None:
        """After a restart: wait for the supervisors that live, count those that ended, start those never started."""
        for job in list(self._life.jobs.values()):
            for step in list(job.active_steps()):
                for place in step.nodes:
                    if not (place.done or place.lost):
                        self._adopt(place_key(job, step, place), step, now)

    def _adopt(self, key: str, step: Step, now: float) -> None:
        statuses = self._launcher.result(key)
        if statuses is not None:
            self._ended(key, statuses, now)
        elif self._launcher.is_alive(key):
            self._awaited[key] = now + _ADOPT_S
        elif not self._launcher.was_claimed(key) and step.is_batch:
            self._life.orders.add(Order(do="launch", key=key))
        else:
            # An srun step that was never started has lost its srun's files with the old controller.
            self._ended(key, None, now)

    # -- hearing

    def hear(self, connection: Connection, word: dict[str, Any], now: float) -> None:
        """A supervisor says hello, or that tasks ended."""
        key = word["key"]
        statuses = {int(index): status for index, status in word.get("statuses", {}).items()}
        found = self.place(key)
        if word["kind"] == "hello":
            connection.key = key
            self._connected[key] = connection
            self._awaited.pop(key, None)
            is_bygone = found is None or found[2].lost
            if is_bygone and key not in self._life.doomed and not self._is_cut_off(key):
                _order(connection, Order(do="kill", key=key))
            for order in self._waiting_orders.pop(key, []):
                _order(connection, order)
        if found is not None and not found[2].lost and statuses:
            self._life.task_ended(*found, statuses)

    def disconnected(self, connection: Connection, now: float) -> None:
        """A supervisor's connection ended: it finished, or something killed it."""
        if self._connected.get(connection.key) is connection:
            del self._connected[connection.key]
            self._gone(connection.key, now)

    def reap(self, now: float) -> None:
        """Collect the supervisors that have ended; one that never said hello is noticed here."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            key = self._children.pop(pid, None)
            if key is not None and key not in self._connected:
                self._gone(key, now)

    def give_up(self, now: float) -> None:
        """Stop waiting for those that have not been heard of in time."""
        for key, until in list(self._awaited.items()):
            if now >= until:
                self._ended(key, self._launcher.result(key), now)

    def _gone(self, key: str, now: float) -> None:
        statuses = self._launcher.result(key)
        if statuses is None and self._launcher.is_alive(key):
            self._awaited[key] = now + _ADOPT_S
            return
        self._ended(key, statuses, now)

    def _ended(self, key: str, statuses: dict[int, int] | None, now: float) -> None:
        """``statuses`` None: the supervisor died before its tasks, so they go too."""
        self._awaited.pop(key, None)
        self._waiting_orders.pop(key, None)
        found = self.place(key)
        if found is None or found[2].done or found[2].lost:
            return
        if statuses is None:
            proctree.kill_marked(self._launcher.marker(key), timeout_s=_SWEEP_S)
            killed = dict.fromkeys(range(found[2].num_tasks), int(signal.SIGKILL))
            statuses = {**killed, **found[2].statuses}
        self._life.place_done(*found, statuses, now)

    def _is_cut_off(self, key: str) -> bool:
        node = self._life.nodes.get(key.rpartition(".")[2])
        return node is not None and node.isolated

    # -- ordering

    def order(self, order: Order) -> None:
        """Pass an order on; one for a supervisor that is just starting waits for its hello."""
        if order.key in self._connected:
            _order(self._connected[order.key], order)
        elif order.key in self._awaited:
            self._waiting_orders.setdefault(order.key, []).append(order)

    def purge(self, node: str) -> None:
        """The node is back: what runs there for a bygone run, or was given up as lost, goes."""
        for key, connection in self._connected.items():
            found = self.place(key)
            # What has its own time to end has it still.
            if key in self._life.doomed:
                continue
            if key.endswith(f".{node}") and (found is None or found[2].lost):
                _order(connection, Order(do="kill", key=key))

    def kill_all(self) -> None:
        """Order every supervisor to end its step at once."""
        for key, connection in self._connected.items():
            _order(connection, Order(do="kill", key=key))


def _order(connection: Connection, order: Order) -> None:
    body = {"do": order.do, "signum": order.signum, "scope": order.scope, "text": order.text}
    connection.send(b"order", json.dumps(body).encode())
