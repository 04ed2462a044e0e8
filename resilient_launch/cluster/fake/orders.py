"""What a change of state orders the supervisors to do. Orders wait here until the change is committed."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from resilient_launch.cluster.fake import timefmt
from resilient_launch.cluster.fake.model import Job, Step, StepNode


@dataclass(frozen=True, kw_only=True)
class Order:
    """One thing to do for a supervisor, or to tell the commands that wait.

    ``do`` is launch, signal, say or kill (``key`` names the supervisor), purge (``key`` names a node whose supervisors
    of bygone runs must go), or job / step (``key`` names what changed, for the commands that wait for it).
    """

    do: str
    key: str
    signum: int = 0
    scope: str = ""
    text: str = ""


def place_key(job: Job, step: Step, place: StepNode) -> str:
    """The name of one supervisor: job, run, step and node."""
    return f"{job.run_key}.{step.name}.{place.node}"


class Orders:
    """The queue of orders, and Slurm's ways to signal a job. ``scope`` is who of a step gets a signal: tree or task."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._queue: list[Order] = []
        self.now = 0.0
        """The time that lines written into the jobs' logs will name."""

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, order: Order) -> None:
        self._queue.append(order)

    def take(self) -> list[Order]:
        """Everything that waits; the queue is empty afterwards."""
        taken, self._queue = self._queue, []
        return taken

    def signal_steps(self, job: Job, signum: int) -> None:
        """To every srun step, and not to the batch script."""
        for step in job.active_steps():
            if not step.is_batch:
                self.signal_step(job, step, signum)

    def signal_batch(self, job: Job, signum: int, *, full: bool = False) -> None:
        """To the batch shell alone, or (``full``) to its process group, srun commands included."""
        batch = job.step("batch")
        if batch is not None and batch.end is None:
            self.signal_step(job, batch, signum, scope="group" if full else "shell")

    def signal_step(self, job: Job, step: Step, signum: int, *, scope: str = "") -> None:
        """To the tasks of one step; TERM and KILL leave Slurm's line in the step's log first."""
        if signum in (signal.SIGTERM, signal.SIGKILL):
            step.killed = True
            self.say(job, step, "")
        for place in step.nodes:
            if not (place.done or place.lost):
                key = place_key(job, step, place)
                order = Order(do="signal", key=key, signum=signum, scope=scope or self._scope)
                self._queue.append(Order(do="kill", key=key) if signum == signal.SIGKILL and not scope else order)

    def end_place(self, key: str) -> None:
        """CONT and TERM to what one supervisor has, whatever its step is to its job by now."""
        for signum in (signal.SIGCONT, signal.SIGTERM):
            self._queue.append(Order(do="signal", key=key, signum=signum, scope=self._scope))

    def say(self, job: Job, step: Step, due: str) -> None:
        """The line in a step's log that names its end. A supervisor writes the first such line only."""
        first = step.nodes[0]
        if step.end is not None or first.done or first.lost:
            return
        entity = f"JOB {job.job_id}" if step.is_batch else f"STEP {job.job_id}.{step.name}"
        text = f"error: *** {entity} ON {first.node} CANCELLED AT {timefmt.moment(self.now)}{due} ***"
        self.add(Order(do="say", key=place_key(job, step, first), text=text))
