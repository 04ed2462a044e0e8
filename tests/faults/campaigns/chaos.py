"""Random schedules of mixed faults over whole runs on the embedded fake Slurm: each ends as if nothing had happened.

A schedule follows from its name and the campaign's seed, so that any one of them can be played again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from resilient_launch.checkpoint.store import published
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_ends
from resilient_launch.lab.verify import final_digest
from resilient_launch.launch.clusters import fake_state_dir
from resilient_launch.report.state import read_verdict
from tests.faults.campaigns.tally import Tally, hold, say

MAIN = "from resilient_launch.cli.main import main; main()"
REPOSITORY = Path(__file__).resolve().parents[3]
RUN = "chaos"
TIMEOUT_S = 900.0
POLL_S = 0.1
TAIL = 1500


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is trained: its configuration's keys, its steps, and how many schedules are played at once."""

    name: str
    keys: dict[str, Any]
    steps: int
    at_once: int

    @property
    def num_nodes(self) -> int:
        return int(self.keys.get("nodes", 1))

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * int(self.keys.get("workers_per_node", 1))


ARTICLE = Program(
    name="article",
    keys={"module": "resilient_launch.examples.article.train", "args": ["--steps", "400", "--step-s", "0.01"]},
    steps=400,
    at_once=2,
)
QUICKSTART = Program(
    name="quickstart",
    keys={
        "module": "resilient_launch.examples.quickstart",
        "args": ["--steps", "80"],
        "nodes": 2,
        "workers_per_node": 2,
    },
    steps=80,
    at_once=1,
)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The faults of one run; ``damages`` are the attempts after whose end a bit of the newest checkpoint flips."""

    faults: list[dict[str, Any]]
    damages: frozenset[int]
    checkpoint: dict[str, Any]
    signals: str
    grace_s: int


def chaos_article(tally: Tally) -> None:
    _chaos(tally, "chaos-article", ARTICLE, 300 if tally.is_long else 4)


def chaos_quickstart(tally: Tally) -> None:
    _chaos(tally, "chaos-quickstart", QUICKSTART, 24 if tally.is_long else 6)


def _chaos(tally: Tally, part: str, program: Program, num_schedules: int) -> None:
    names = [name for name in (f"{program.name}-{number}" for number in range(num_schedules)) if tally.wants(name)]
    if not names and tally.only is not None:
        # A replay may name a schedule that this form does not reach.
        names = [tally.only]
    stopping = threading.Event()
    with tempfile.TemporaryDirectory(prefix="rlaunch-chaos-") as scratch, _players(program.at_once, stopping) as pool:
        quiet = Schedule(faults=[], damages=frozenset(), checkpoint={"every": "100 steps"}, signals="tree", grace_s=30)
        undisturbed = _perform(program, quiet, Path(scratch) / "reference", stopping)
        hold(not undisturbed.problem, f"without faults: {undisturbed.problem}", undisturbed.text[-TAIL:])
        reference = undisturbed.digest
        schedules = [draw(program, random.Random(f"{tally.seed}/{name}")) for name in names]
        roots = [Path(scratch) / name for name in names]
        for name, schedule, performed in zip(
            names,
            schedules,
            pool.map(lambda schedule, root: _perform(program, schedule, root, stopping), schedules, roots),
            strict=True,
        ):
            with tally.case(part, name):
                said = f"{schedule}\n{performed.text[-TAIL:]}"
                hold(not performed.problem, performed.problem, said)
                hold(performed.digest == reference, f"digest {performed.digest} instead of {reference}", said)
                say(f"{name}: as without faults ({performed.num_faults} faults, {performed.num_attempts} attempts)")
                tally.counts["schedules"] += 1
                tally.counts["faults in schedules"] += performed.num_faults
                tally.counts["attempts in schedules"] += performed.num_attempts


def draw(program: Program, rng: random.Random) -> Schedule:
    """One schedule: two to four faults at random steps, some with what makes up for them."""
    faults: list[dict[str, Any]] = []
    num_faults = rng.randint(2, 4) if program is ARTICLE else rng.randint(1, 2)
    for step in sorted(rng.sample(range(5, program.steps - 20), num_faults)):
        at = {"step": step}
        later = {"step": step + rng.randrange(5, 25)}
        rank, node = rng.randrange(program.num_ranks), rng.randrange(program.num_nodes)
        match rng.choices(
            ["preempt", "time-limit", "kill-worker", "fail-node", "stop-worker", "drain", "controller", "accounting"],
            weights=[4, 3, 6, 2, 1, 1, 1, 1],
        )[0]:
            case "kill-worker":
                faults.append(
                    {"at": at, "do": "kill-worker", "rank": rank, "signal": rng.choice(["KILL", "SEGV", "ABRT"])}
                )
            case "fail-node":
                faults += [{"at": at, "do": "fail-node", "node": node}, {"at": at, "do": "resume-node"}]
            case "stop-worker":
                faults.append({"at": at, "do": "stop-worker", "rank": rank})
            case "drain":
                faults += [{"at": at, "do": "drain", "node": node}, {"at": later, "do": "resume-node"}]
            case "controller":
                faults += [{"at": at, "do": "controller-down"}, {"at": later, "do": "controller-up"}]
            case "accounting":
                faults.append(
                    {"at": at, **rng.choice([{"do": "no-accounting"}, {"do": "slow-accounting", "delay": "3s"}])}
                )
            case verb:
                faults.append({"at": at, "do": verb})
    return Schedule(
        faults=faults,
        damages=frozenset(number for number in range(4) if rng.random() < 0.2),
        checkpoint={"every": f"{rng.choice([15, 40, 110])} steps", "keep": rng.randint(1, 3)},
        signals=rng.choice(["tree", "task"]),
        grace_s=rng.choice([5, 30]),
    )


@dataclass(frozen=True, kw_only=True)
class Performed:
    """How one run came out; ``problem`` is empty where it finished."""

    problem: str
    digest: str
    text: str
    num_attempts: int
    num_damages: int

    @property
    def num_faults(self) -> int:
        """Those that did strike: a run may be over before the moment of its last ones."""
        return (
            sum(line.startswith("fault ") and " at step " in line for line in self.text.splitlines()) + self.num_damages
        )


@contextlib.contextmanager
def _players(at_once: int, stopping: threading.Event) -> Iterator[ThreadPoolExecutor]:
    """Whoever leaves early leaves no run behind."""
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool
    finally:
        stopping.set()
        pool.shutdown(cancel_futures=True)


def _perform(program: Program, schedule: Schedule, root: Path, stopping: threading.Event) -> Performed:
    root.mkdir()
    config = root / "config.yaml"
    config.write_text(yaml.safe_dump(_config(program, schedule)))
    paths, output = RunPaths.of(RUN, root), root / "output.txt"
    with _cluster(root), output.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", MAIN, "submit", str(config), "--wait", "--root", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=root,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        problem, num_damages = "", 0
        left = set(schedule.damages)
        deadline = time.monotonic() + TIMEOUT_S
        while child.poll() is None:
            if stopping.is_set() or time.monotonic() > deadline:
                problem = "stopped" if stopping.is_set() else f"did not end within {TIMEOUT_S:.0f} s"
                child.send_signal(signal.SIGKILL)
                child.wait()
            for number in left & _interrupted(paths):
                left.discard(number)
                num_damages += _flip_a_bit(paths.checkpoints)
            time.sleep(POLL_S)
        verdict = read_verdict(paths) or {}
        if not problem and (child.returncode or verdict.get("state") != "finished"):
            problem = (
                f"exit {child.returncode}, {verdict.get('state')}: {verdict.get('why')} {verdict.get('error', '')}"
            )
        digest = "" if problem else final_digest(paths)
    return Performed(
        problem=problem,
        digest=digest,
        text=output.read_text(errors="replace"),
        num_attempts=len(read_ends(paths)),
        num_damages=num_damages,
    )


def _config(program: Program, schedule: Schedule) -> dict[str, Any]:
    partitions = [
        {"name": "low", "tier": 1, "preempt": "requeue", "grace": f"{schedule.grace_s}s"},
        {"name": "high", "tier": 10},
    ]
    return {
        **program.keys,
        "name": RUN,
        "cluster": "fake",
        "python": sys.executable,
        "time": "10m",
        "signal_lead": "20s",
        "checkpoint": schedule.checkpoint,
        # The faults are ours: none of them counts against the run.
        "restart": {
            "backoff": "0s",
            "max_crashes": 20,
            "max_worker_restarts": 20,
            "same_step": 20,
            "exclude_nodes": False,
        },
        "hang": {"floor": "5s"},
        "fake": {
            "nodes": program.num_nodes + 1,
            "cpus": 4,
            "requeue_delay": "0s",
            "kill_wait": "2s",
            "signals": schedule.signals,
            "partitions": partitions,
        },
        "faults": schedule.faults,
    }


@contextlib.contextmanager
def _cluster(root: Path) -> Iterator[None]:
    try:
        yield
    finally:
        FakeCluster(fake_state_dir(root)).down()


def _interrupted(paths: RunPaths) -> set[int]:
    """Attempts that ended, and that another one follows."""
    return {number for number, end in read_ends(paths).items() if end.action == "requeue"}


def _flip_a_bit(checkpoints: Path) -> int:
    """Damage the newest checkpoint; how many were."""
    newest = next(iter(published(checkpoints)), None)
    with contextlib.suppress(OSError, ValueError):
        file = max((checkpoints / str(newest)).glob("*.bin"), key=lambda path: path.stat().st_size)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        return 1
    return 0
