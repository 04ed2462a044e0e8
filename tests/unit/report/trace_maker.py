"""Runs that never happened, told as their processes would have told them, with the truth beside: seconds by label."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient_launch.cluster.base import JobRow
from resilient_launch.core.paths import RunPaths
from resilient_launch.policy.partition import Label

NUM_NODES = 2
RANKS_PER_NODE = 2
CONFIG = """\
name: made
script: train.py
workdir: /nowhere
python: python3
nodes: 2
workers_per_node: 2
gpus_per_node: {gpus}
"""


@dataclass(frozen=True)
class Plan:
    """How one attempt goes. Times in seconds; ``ends`` names what happens after ``num_steps`` more steps."""

    num_steps: int
    ends: str
    start_s: float = 300.0
    restore_s: float = 40.0
    hang_s: float = 600.0
    idle_s: float = 5.0
    step_s: float = 1.0
    save_every: int = 200
    save_s: float = 30.0
    straggler: float = 0.0


@dataclass
class Made:
    """A made run: its lines by file name, attempts, Slurm's rows, and the truth."""

    lines: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    claims: list[dict[str, Any]] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    rows: list[JobRow] = field(default_factory=list)
    truth: dict[Label, float] = field(default_factory=lambda: defaultdict(float))
    allocated_s: float = 0.0
    queue_wait_s: float = 0.0
    rework_steps: int = 0

    def write(self, root: Path, *, gpus: int = 4) -> RunPaths:
        """Put the run under ``root``."""
        paths = RunPaths(root / "made")
        for directory in paths.all():
            directory.mkdir(parents=True, exist_ok=True)
        paths.config.write_text(CONFIG.format(gpus=gpus))
        for claim in self.claims:
            paths.attempt(claim["number"]).write_text(json.dumps(claim))
        for end in self.ends:
            paths.attempt_end(end["number"]).write_text(json.dumps(end))
        for name, lines in self.lines.items():
            (paths.events / name).write_bytes(b"".join(lines))
        return paths


class _Process:
    """Writes one file's lines with its node's two clocks."""

    def __init__(self, made: Made, name: str, attempt: int, node: int, clock: _Clock, **identity: Any) -> None:
        self._lines, self._clock = made.lines[name], clock
        self._identity = {"attempt": attempt, "restart": 0, "node": node, **identity}

    def say(self, kind: str, at_s: float, **fields: Any) -> None:
        wall_s, mono_s = self._clock.read(at_s)
        record = {"v": 1, "kind": kind, "t": round(wall_s, 6), "mono": round(mono_s, 6), **self._identity, **fields}
        self._lines.append(json.dumps(record).encode() + b"\n")

    def mono(self, at_s: float) -> float:
        return self._clock.read(at_s)[1]


@dataclass
class _Clock:
    """A node's clocks against true time. The wall clock is set by ``jump_s`` at ``jumps_at_s``."""

    skew_s: float
    boot_s: float
    jumps_at_s: float = math.inf
    jump_s: float = 0.0

    def read(self, at_s: float) -> tuple[float, float]:
        jump_s = self.jump_s if at_s >= self.jumps_at_s else 0.0
        return at_s + self.skew_s + jump_s, at_s - self.boot_s


def make(plans: list[Plan], seed: int = 0, *, max_skew_s: float = 0.0, clock_jump_s: float = 0.0) -> Made:
    """Play the attempts one after another."""
    rng = random.Random(seed)
    made = Made()
    now_s, saved, high_water = 1_700_000_000.0, 0, 0
    for number, plan in enumerate(plans):
        submitted_s, now_s = now_s, now_s + float(rng.randint(5, 500))
        made.queue_wait_s += now_s - submitted_s
        clocks = [
            _Clock(rng.uniform(-max_skew_s, max_skew_s), rng.uniform(0, 1e9), now_s + 500.0, clock_jump_s)
            for _ in range(NUM_NODES)
        ]
        now_s, saved, high_water = _attempt(made, rng, plan, number, clocks, now_s, submitted_s, saved, high_water)
    return made


def _attempt(
    made: Made,
    rng: random.Random,
    plan: Plan,
    number: int,
    clocks: list[_Clock],
    begin_s: float,
    submitted_s: float,
    saved: int,
    high_water: int,
) -> tuple[float, int, int]:
    truth = made.truth
    agents = [
        _Process(made, f"a{number:04d}.n{node:04d}.jsonl", number, node, clocks[node]) for node in range(NUM_NODES)
    ]
    ranks = [
        _Process(
            made,
            f"a{number:04d}.r0.w{rank:05d}.jsonl",
            number,
            # Global ranks follow the rendezvous, not the nodes' order.
            node := (rank // RANKS_PER_NODE + 1) % NUM_NODES,
            clocks[node],
            rank=rank,
        )
        for rank in range(NUM_NODES * RANKS_PER_NODE)
    ]
    claimed_s = begin_s + 10.0
    nodes = [f"n{node}" for node in range(NUM_NODES)]
    made.claims.append(
        {
            "number": number,
            "job_id": "7",
            "slurm_restart_count": number,
            "nodes": nodes,
            "addresses": [],
            "port": 1,
            "claimed_at": clocks[0].read(claimed_s)[0],
        }
    )
    agents[0].say("attempt", claimed_s, job_id="7", slurm_restart_count=number, nodes=nodes)
    restore_at_s = begin_s + plan.start_s
    loop_s = restore_at_s + plan.restore_s
    truth[Label.RESTART if number else Label.START_UP] += plan.start_s
    truth[Label.RESTORE] += plan.restore_s
    for rank in ranks:
        rank.say("phase", restore_at_s - 20.0, phase="init")
        rank.say("phase", restore_at_s, phase="restore")
    ranks[0].say(
        "resume",
        loop_s,
        resume_step=saved,
        rework_steps=max(high_water - saved, 0),
        world_size=4,
        slurm_restart_count=number,
        torchelastic_restart_count=0,
        last_cause=None,
    )
    for rank in ranks:
        rank.say("phase", loop_s, phase="first_step")
    windows = _Windows(ranks, loop_s, saved)
    now_s, step = loop_s, saved
    for _ in range(plan.num_steps):
        local_s = [plan.step_s * rng.uniform(0.97, 1.0) for _ in ranks]
        local_s[1] += plan.straggler * plan.step_s
        took_s = max(local_s) + 0.01 * plan.step_s
        now_s += took_s
        excess_s = max(local_s) - sum(sorted(local_s)[1:3]) / 2
        again = step < high_water
        truth[Label.REWORK if again else Label.USEFUL] += took_s - excess_s
        truth[Label.STRAGGLER] += excess_s
        made.rework_steps += again
        step += 1
        windows.add(now_s, local_s)
        if step % plan.save_every == 0:
            now_s = _save(ranks, now_s, plan.save_s, step, "time")
            truth[Label.CHECKPOINT] += plan.save_s
            saved = step
    high_water = max(high_water, step)
    cause, over_s = plan.ends, now_s
    if plan.ends in ("finished", "preempted"):
        windows.flush()
        agents[0].say("notice", now_s, cause=cause, deadline=None, source="SIGTERM")
        over_s = _save(ranks, now_s, plan.save_s, step, "notice" if cause == "preempted" else "end")
        truth[Label.EMERGENCY if cause == "preempted" else Label.CHECKPOINT] += plan.save_s
        saved = step
        for rank in ranks:
            rank.say("phase", over_s, phase="leave")
    elif plan.ends == "hang":
        windows.flush()
        over_s = now_s + plan.hang_s
        stood = {"culprit": 1, "culprit_node": "n1", "why": "stands", "idle_s": plan.hang_s - 0.1}
        agents[0].say("hang", over_s - 0.1, status="confirmed", **stood)
        truth[Label.HANG] += plan.hang_s
    elif plan.ends == "crash":
        # Killed in the middle of a step, with what was not flushed yet.
        over_s = now_s + plan.step_s / 2
        truth[Label.REWORK] += plan.step_s / 2
    for agent in agents:
        agent.say("group_end", over_s, exits={"0": 0}, step=step)
    end_s = over_s + plan.idle_s
    truth[Label.IDLE_TAIL] += plan.idle_s
    agents[0].say("end", end_s - 1.0, cause=cause, step=step)
    made.ends.append(
        {
            "number": number,
            "cause": cause,
            "end_step": step,
            "ended_at": clocks[0].read(end_s - 1.0)[0],
            "action": "requeue",
            "why": "",
        }
    )
    end_s = float(math.ceil(end_s))
    truth[Label.IDLE_TAIL] += end_s - (over_s + plan.idle_s)
    made.allocated_s += end_s - begin_s
    made.rows.append(
        JobRow(
            job_id="7",
            state="REQUEUED",
            submit_time=int(submitted_s),
            start_time=int(begin_s),
            end_time=int(end_s),
            exit_code=0,
            exit_signal=0,
            derived_exit_code=0,
            nodes="n[0-1]",
        )
    )
    return end_s, saved, high_water


class _Windows:
    """Every rank's windows: flushed after 50 steps or a second, as training does."""

    def __init__(self, ranks: list[_Process], loop_s: float, first: int) -> None:
        self._ranks, self._loop_s, self._first = ranks, loop_s, first
        self._ends: list[float] = []
        self._locals: list[list[float]] = []

    def add(self, at_s: float, local_s: list[float]) -> None:
        self._ends.append(at_s - self._loop_s)
        self._locals.append(local_s)
        if len(self._ends) >= 50 or self._ends[-1] - self._ends[0] > 1.0:
            self.flush()

    def flush(self) -> None:
        if not self._ends:
            return
        at_s = self._loop_s + self._ends[-1]
        for index, rank in enumerate(self._ranks):
            rank.say(
                "window",
                at_s,
                first=self._first,
                mono0=round(rank.mono(self._loop_s), 6),
                end_s=[round(end, 6) for end in self._ends],
                local_s=[round(each[index], 6) for each in self._locals],
            )
        self._first += len(self._ends)
        self._ends, self._locals = [], []


def _save(ranks: list[_Process], at_s: float, took_s: float, step: int, reason: str) -> float:
    for rank in ranks:
        rank.say("phase", at_s, phase="save")
        rank.say("checkpoint", at_s, step=step, status="begin", reason=reason)
        rank.say(
            "checkpoint",
            at_s + took_s,
            step=step,
            status="durable",
            reason=reason,
            blocking_s=took_s,
            num_bytes=4 << 30,
        )
        rank.say("phase", at_s + took_s, phase="step")
    return at_s + took_s


def damage(made: Made, rng: random.Random, *, torn: bool, repeated: bool, foreign: bool, shuffled: bool) -> None:
    """What files suffer: torn last lines, lines written twice, kinds of a newer version, lines out of order."""
    for name, lines in made.lines.items():
        if repeated:
            for _ in range(len(lines) // 20 + 1):
                lines.insert(rng.randrange(len(lines) + 1), rng.choice(lines))
        if foreign:
            line = {"v": 9, "kind": "weather", "t": 1.0, "mono": 1.0, "rain": True}
            lines.insert(rng.randrange(len(lines) + 1), json.dumps(line).encode() + b"\n")
            lines.insert(rng.randrange(len(lines) + 1), b'{"kind": "window", "first"\x00\xff\n')
        if shuffled:
            for index in range(0, len(lines) - 3, 3):
                lines[index : index + 3] = rng.sample(lines[index : index + 3], 3)
        if torn and ".w" in name:
            lines[-1] = lines[-1][: rng.randrange(len(lines[-1]))]
