"""One run of a rehearsal: submitted to the fake cluster, interrupted as its scenario says, followed to its end."""

from __future__ import annotations

import contextlib
import glob
import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from resilient_launch.checkpoint.digest import state_digest, state_lines
from resilient_launch.checkpoint.store import published
from resilient_launch.cluster.fake import proctree
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec
from resilient_launch.config.schema import Every, HangConfig, LaunchConfig, NodeRange, RestartConfig, StaggerConfig
from resilient_launch.core.errors import CheckpointError, RlaunchError
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_attempts
from resilient_launch.job.rehearsal import Instructions, Stage
from resilient_launch.lab.rehearse.scenarios import Moments, Scenario, Seen
from resilient_launch.lab.rehearse.traces import Record, read_traces
from resilient_launch.launch.clusters import Connection, connect
from resilient_launch.launch.plan import make_plan
from resilient_launch.launch.stopping import stop_run
from resilient_launch.launch.submit import submit
from resilient_launch.report.attempts import AttemptRow
from resilient_launch.report.state import read_verdict, run_status

T = TypeVar("T")
POLL_S = 0.2
RUN_TIMEOUT_S = 420.0
STEP_TIMEOUT_S = 240.0
GRACE_S, SHORT_GRACE_S, LEAD_S = 30, 2, 15
_NUM_KILLS = 3
_KILL_WITHIN_S = 2.5
_SHARE_OF_KILLS_IN_STEPS = 0.6


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one run came out. ``digest`` and ``lines`` are of its final state, empty where it has none."""

    name: str
    paths: RunPaths
    is_finished: bool
    reason: str
    error: str
    attempts: Sequence[AttemptRow]
    records: Sequence[Record]
    digest: str
    lines: Sequence[str]
    seen: Seen
    seconds: float


def rehearsal_config(config: LaunchConfig, moments: Moments) -> LaunchConfig:
    """The user's configuration as it is rehearsed: the same program and ranks, on a fake cluster with spare nodes.

    Budgets are wide, since a rehearsal fails on purpose; saves are every few steps and all of them are kept.
    """
    nodes = config.nodes.min
    spec = FakeSpec(
        num_nodes=nodes + 1,
        cpus=2 * config.cpus_per_node,
        gpus=config.gpus_per_node,
        memory_mb=max(config.memory_mb or 0, FakeSpec().memory_mb),
        partitions=(
            PartitionSpec(name="rehearsal", tier=1, preempt_mode="requeue", grace_s=GRACE_S),
            PartitionSpec(name="short", tier=1, preempt_mode="requeue", grace_s=SHORT_GRACE_S),
        ),
        kill_wait_s=2,
        requeue_delay_s=0.0,
        signals=config.fake.signals,
    )
    checkpoint = replace(
        config.checkpoint, every=Every(steps=moments.every), keep=moments.steps, on_topology_change="stop"
    )
    return replace(
        config,
        cluster="fake",
        fake=spec,
        faults=(),
        nodes=NodeRange(min=nodes, max=nodes),
        partition="rehearsal",
        account=None,
        qos=None,
        sbatch=(),
        time_s=3600.0,
        signal_lead_s=LEAD_S,
        checkpoint=checkpoint,
        stagger=StaggerConfig(),
        restart=RestartConfig(max_worker_restarts=3, max_crashes=1, same_step=4, backoff_s=0.0, exclude_nodes=False),
        hang=HangConfig(floor_s=3.0, ceiling_s=120.0),
    )


def leave_out(config: LaunchConfig, directory: Path) -> LaunchConfig:
    """The configuration whose code does not include ``directory``: older runs and rehearsals are no part of the job."""
    if not directory.is_relative_to(config.workdir) or directory == config.workdir:
        return config
    # Names may hold what a pattern would take for its own.
    pattern = f"{glob.escape(str(directory.relative_to(config.workdir)))}/*"
    return replace(config, code=replace(config.code, exclude=(*config.code.exclude, pattern)))


class Theatre:
    """Where runs are performed: a root directory with a fake cluster of its own. Close it, and no process is left."""

    def __init__(self, config: LaunchConfig, root: Path, moments: Moments, *, seed: int) -> None:
        self.config, self.root, self.moments = rehearsal_config(config, moments), root, moments
        self._seed = seed
        root.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """End whatever runs, and the cluster."""
        FakeCluster(self.root / ".fake").down()

    def perform(
        self,
        name: str,
        scenario: Scenario | None = None,
        *,
        drops: Sequence[str] = (),
        seed_offset: int = 0,
    ) -> Outcome:
        """One run called ``name``, undisturbed without a scenario. ``drops`` are the pieces for a scenario that drops.

        Raises RlaunchError when it can't even be submitted.
        """
        began = time.monotonic()
        config = replace(self.config, name=name)
        if drops:
            # Every piece costs a worker group that gets nowhere.
            many = len(drops) + config.restart.max_worker_restarts
            config = replace(config, restart=replace(config.restart, max_worker_restarts=many, same_step=many))
        if scenario is not None and scenario.action == "cut-node":
            # The watchdog beyond the cut would end what is to wake up late.
            config = replace(config, hang=replace(config.hang, enabled=False))
        if scenario is not None and scenario.short_grace:
            config = replace(config, partition="short")
        paths = RunPaths.of(name, self.root)
        stage = Stage(self.root / f"{name}.stage")
        stage.make()
        instructions = Instructions(
            stage=self.root / f"{name}.stage",
            steps=self.moments.steps,
            seed_offset=seed_offset,
            pace_s=scenario.pace_s if scenario else 0.0,
            mishaps=scenario.mishaps(self.moments) if scenario else (),
            drops=tuple(drops),
        )
        paths.rehearsal.write_bytes(instructions.render())
        connection = connect("fake", self.root, start=config.fake)
        job_id = submit(make_plan(config, self.root), connection)
        play = _Play(self, scenario, config, paths, stage, connection, job_id)
        reason = ""
        try:
            play.act(random.Random(f"{self._seed}/{name}"))
            play.wait_over()
        except RlaunchError as error:
            reason = str(error)
        finally:
            play.clear()
        return play.outcome(reason, time.monotonic() - began)


class _Play:
    """The performance of one run."""

    def __init__(
        self,
        theatre: Theatre,
        scenario: Scenario | None,
        config: LaunchConfig,
        paths: RunPaths,
        stage: Stage,
        connection: Connection,
        job_id: str,
    ) -> None:
        self._theatre, self._scenario, self._config = theatre, scenario, config
        self._paths, self._stage, self._connection, self._job_id = paths, stage, connection, job_id
        self._num_ranks = config.nodes.min * config.workers_per_node
        self._moments = theatre.moments

    def act(self, chance: random.Random) -> None:
        """Do to the run from outside what the scenario says. Raises RlaunchError when the moment never came."""
        fake = self._connection.fake
        action = self._scenario.action if self._scenario else "none"
        assert fake is not None
        match action:
            case "preempt":
                self._wait_gate()
                fake.preempt(self._job_id)
            case "time-limit":
                self._wait_gate()
                fake.time_limit(self._job_id, LEAD_S + 1.0)
            case "fail-node":
                self._wait_gate()
                fake.fail_node(read_attempts(self._paths)[-1].nodes[-1])
            case "damage":
                gate = self._wait_gate()
                damage(self._paths.checkpoints, [self._moments.save(number) for number in (4, 3, 2)])
                self._stage.mark(f"open.{gate}")
            case "kills":
                self._kill_at_random(chance)
            case "change-world":
                self._wait_gate()
                self._change_world()
            case "cut-node":
                self._cut_node(fake)

    def wait_over(self) -> None:
        """Until there is a verdict. Raises RlaunchError at the deadline, or when the job is gone without one."""
        gone_since: float | None = None

        def is_over() -> bool:
            nonlocal gone_since
            if read_verdict(self._paths) is not None:
                return True
            status = run_status(self._paths, self._connection.scheduler, self._job_id)
            if status.job_state == "PENDING" and status.reason == "BeginTime":
                with contextlib.suppress(RlaunchError):
                    self._connection.scheduler.start_now(self._job_id)
            now = time.monotonic()
            gone_since = (gone_since or now) if status.state.is_final else None
            return gone_since is not None and now - gone_since > 10 * POLL_S

        self._wait(is_over, RUN_TIMEOUT_S, "the end of the run")

    def clear(self) -> None:
        """Leave no job and no node behind that would be in the next run's way."""
        fake = self._connection.fake
        assert fake is not None
        with contextlib.suppress(RlaunchError):
            view = self._connection.scheduler.show(self._job_id)
            if view is not None and not view.is_over:
                self._connection.scheduler.cancel(self._job_id)
                self._wait(self._is_job_over, STEP_TIMEOUT_S, "the job's end", outlasts_run=True)
        for node in self._config.fake.node_names:
            with contextlib.suppress(RlaunchError):
                fake.resume_node(node)

    def outcome(self, reason: str, seconds: float) -> Outcome:
        """What is there to be seen once the run is over."""
        status = run_status(self._paths, None, self._job_id)
        records = read_traces(self._stage.traces)
        digest, lines = "", []
        newest = next(iter(published(self._paths.checkpoints)), None)
        if newest is not None:
            with contextlib.suppress(CheckpointError):
                directory = self._paths.checkpoints / str(newest)
                digest, lines = state_digest(directory), list(state_lines(directory))
        return Outcome(
            name=self._paths.name,
            paths=self._paths,
            is_finished=status.state == "finished",
            reason=reason or status.reason,
            error=status.error,
            attempts=status.attempts,
            records=records,
            digest=digest,
            lines=lines,
            seen=self._seen(status.attempts, records),
            seconds=seconds,
        )

    def _seen(self, rows: Sequence[AttemptRow], records: Sequence[Record]) -> Seen:
        events = list(read_events(self._paths.events))
        saves = [
            (str(event["status"]), str(event["reason"]), int(event["step"]))
            for event in events
            if event["kind"] == "checkpoint" and event.get("rank", 0) == 0
        ]
        return Seen(
            moments=self._moments,
            causes=[row.cause for row in rows],
            resume_steps=[each.step for each in records if each.is_first and each.rank == 0],
            restores=any(event["kind"] == "resume" for event in events),
            quarantined=sorted(path.name for path in self._paths.checkpoints.glob("*.corrupt")),
            saves=[*saves, *(("late", "", step) for step in self._late_steps())],
            marks=self._stage.read_marks(""),
        )

    def _late_steps(self) -> list[int]:
        """Checkpoints that an attempt published after a newer one had been claimed."""
        attempts = read_attempts(self._paths)
        if not attempts:
            return []
        last = attempts[-1]
        return [
            ident.step
            for ident in published(self._paths.checkpoints)
            if ident.attempt < last.number and str(ident) not in last.checkpoints
        ]

    # From outside.

    def _wait_gate(self) -> str:
        """Until every rank stands at the gate; returns its name."""
        assert self._scenario is not None
        step = next(each.step for each in self._scenario.mishaps(self._moments) if each.kind == "gate")
        name = f"gate.{step:08d}"
        self._wait(
            lambda: len(self._stage.read_marks(f"at.{name}.")) >= self._num_ranks,
            STEP_TIMEOUT_S,
            f"every worker at step {step}",
        )
        return name

    def _kill_at_random(self, chance: random.Random) -> None:
        for number in range(_NUM_KILLS):
            rank = chance.randrange(self._num_ranks)
            delay_s = chance.uniform(0.0, _KILL_WITHIN_S)
            pids = self._wait(partial(self._lives, rank, number), STEP_TIMEOUT_S, "a worker")
            if chance.random() < _SHARE_OF_KILLS_IN_STEPS or number == 0:
                # Starting takes longer than training does here: without this, most would die before their first step.
                self._wait(partial(self._has_begun, number), STEP_TIMEOUT_S, "a worker's first step")
            until = time.monotonic() + delay_s
            while time.monotonic() < until:
                if read_verdict(self._paths) is not None:
                    return
                time.sleep(POLL_S / 4)
            _signal(pids[0], signal.SIGKILL)

    def _lives(self, rank: int, from_number: int) -> list[Mapping[str, object]]:
        """The processes that this rank has been, in order, without the first few."""
        marks = self._stage.read_marks("pid.")
        return [content for name, content in sorted(marks.items()) if name.endswith(f".{rank:05d}")][from_number:]

    def _has_begun(self, number: int) -> bool:
        """Whether the run's life of this number, from 0, has come to its loop."""
        return any(each.life == (0, number) for each in read_traces(self._stage.traces))

    def _change_world(self) -> None:
        stop_run(self._paths, self._connection, timeout_s=STEP_TIMEOUT_S)
        self._wait(self._is_job_over, STEP_TIMEOUT_S, "the job's end", outlasts_run=True)
        workers = self._config.workers_per_node
        checkpoint = replace(self._config.checkpoint, on_topology_change="warn")
        changed = replace(self._config, checkpoint=checkpoint)
        if workers > 1:
            changed = replace(changed, workers_per_node=workers // 2)
        else:
            changed = replace(changed, nodes=NodeRange(min=self._config.nodes.min - 1, max=self._config.nodes.min - 1))
        self._job_id = submit(make_plan(changed, self._theatre.root), self._connection)

    def _cut_node(self, fake: FakeCluster) -> None:
        """The first rank stands still inside a save; its node is cut off, and it wakes up when a new attempt trains."""
        marks = self._wait(lambda: self._stage.read_marks("stopped"), STEP_TIMEOUT_S, "a worker inside its save")
        stopped = marks["stopped"]
        fake.fail_node(str(stopped["node"]), network_only=True)
        self._wait(lambda: self._stage.read_marks("pid.0001."), STEP_TIMEOUT_S, "the next attempt")
        _signal(stopped, signal.SIGCONT)

    def _is_job_over(self) -> bool:
        view = self._connection.scheduler.show(self._job_id)
        return view is None or view.is_over

    def _wait(self, condition: Callable[[], T], timeout_s: float, what: str, *, outlasts_run: bool = False) -> T:
        """The first true value of ``condition``; RlaunchError at the deadline, and when the run is over before it.

        What ``outlasts_run`` is also waited for when there is a verdict already.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            is_over = not outlasts_run and read_verdict(self._paths) is not None
            if value := condition():
                return value
            if is_over or time.monotonic() > deadline:
                why = "the run was over before" if is_over else f"did not come within {timeout_s:.0f} s"
                raise RlaunchError(what, why=why)
            time.sleep(POLL_S)


def _signal(who: Mapping[str, object], number: signal.Signals) -> None:
    """To the process that set a mark, if it still lives: its number may be another's by now."""
    pid = int(str(who["pid"]))
    if proctree.start_ticks(pid) == who["ticks"]:
        proctree.send([pid], number)


def damage(checkpoints: Path, steps: Sequence[int]) -> None:
    """Flip a bit in the first step's checkpoint, cut a file of the second's short, remove one of the third's."""
    by_step = {ident.step: checkpoints / str(ident) for ident in reversed(published(checkpoints))}
    flipped, cut, gone = (max(by_step[step].glob("*.bin"), key=lambda path: path.stat().st_size) for step in steps)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    os.truncate(cut, cut.stat().st_size // 2)
    gone.unlink()
