"""The controller's side of one srun command: what it prints, what it forwards, how it exits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job, Step, exit_code
from resilient_launch.cluster.fake.spec import FakeSpec

Send = Callable[..., None]
_ABORT_S = 2
_KILLS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


class SrunSession:
    """``key`` names the step: job, run, step."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._reported: set[int] = set()
        self._said_aborted = False

    def forward(self, life: Lifecycle, job: Job, step: Step, signum: int, send: Send) -> None:
        """srun got a signal: TERM, HUP and QUIT kill its tasks, CONT is only mentioned, the others are passed on."""
        if signum in _KILLS:
            if signum == signal.SIGQUIT:
                send(b"err", b"srun: Quit\n")
            send(b"err", b"srun: forcing job termination\n")
            # What srun asks for a job that is ending already changes nothing: its tasks keep their KillWait.
            if not job.completing:
                life.orders.signal_step(job, step, signal.SIGKILL)
        elif signum == signal.SIGCONT:
            send(b"err", b"srun: got SIGCONT\n")
        elif signum == signal.SIGPIPE:
            life.orders.signal_step(job, step, signal.SIGKILL)
        elif signum == signal.SIGINT:
            send(b"err", b"srun: interrupt (one more within 1 sec to abort)\n")
            life.orders.signal_step(job, step, signal.SIGINT)
        else:
            life.orders.signal_step(job, step, signum)

    def report(self, spec: FakeSpec, job: Job, step: Step, send: Send, *, aborted: bool) -> int | None:
        """Say what is new about the tasks; the exit code once the step is over."""
        if aborted and not self._said_aborted:
            self._said_aborted = True
            wait_s = spec.kill_wait_s + _ABORT_S
            text = f"srun: Job step aborted: Waiting up to {wait_s} seconds for job step to finish.\n"
            send(b"err", text.encode())
        groups: dict[str, list[tuple[str, int]]] = {}
        for place in step.nodes:
            for local, status in sorted(place.statuses.items()):
                rank = place.first_rank + local
                if rank not in self._reported:
                    self._reported.add(rank)
                    if status:
                        groups.setdefault(_ending(status), []).append((place.node, rank))
        for ending, members in groups.items():
            nodes = hostlist.compress(list(dict.fromkeys(node for node, _ in members)))
            ranks = _ranks([rank for _, rank in members])
            word = "task" if len(members) == 1 else "tasks"
            send(b"err", f"srun: error: {nodes}: {word} {ranks}: {ending}\n".encode())
        if step.end is None:
            return None
        lost = [place.node for place in step.nodes if place.lost]
        if lost:
            send(b"err", f"srun: error: Node failure on {hostlist.compress(lost)}\n".encode())
        codes = [exit_code(status) for place in step.nodes for status in place.statuses.values()]
        return max([*codes, int(bool(lost))], default=0)


def _ending(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"Exited with exit code {os.waitstatus_to_exitcode(status)}"
    core = " (core dumped)" if os.WCOREDUMP(status) else ""
    return (signal.strsignal(os.WTERMSIG(status)) or f"Unknown signal {os.WTERMSIG(status)}") + core


def _ranks(numbers: list[int]) -> str:
    folded = hostlist.compress([f"t{number}" for number in sorted(numbers)]).removeprefix("t")
    return folded.strip("[]")
