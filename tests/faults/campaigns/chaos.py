"""Random schedules of mixed faults over whole runs on the embedded fake Slurm: each ends as if nothing had happened.

A schedule follows from its name and the campaign's seed, so that any one of them can be played again.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import read_ends
from resilient_launch.lab.verify import final_digest
from resilient_launch.launch.clusters import fake_state_dir
from resilient_launch.report.state import read_verdict
from tests.faults.campaigns.meddling import Meddler
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
    """The faults of one run; ``damages`` are the attempts after whose end a bit of the newest checkpoint flips.

    At each step of ``writer_kills`` a process that writes checkpoints in the background dies. Without ``preload``
    workers are started and not forked.
    """

    faults: list[dict[str, Any]]
    damages: frozenset[int] = frozenset()
    writer_kills: tuple[int, ...] = ()
    preload: bool = True
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
    at_once = tally.at_once or program.at_once
    with tempfile.TemporaryDirectory(prefix="rlaunch-chaos-") as scratch, _players(at_once, stopping) as pool:
        reference = undisturbed(program, Path(scratch) / "reference")
        playing = {}
        for name in names:
            schedule = draw(program, random.Random(f"{tally.seed}/{name}"))
            playing[pool.submit(_perform, program, schedule, Path(scratch) / name, stopping)] = (name, schedule)
        for future in as_completed(playing):
            name, schedule = playing[future]
            with tally.case(part, name):
                performed = future.result()
                must_equal(performed, reference, f"{schedule}\n{performed.text[-TAIL:]}")
                count(tally, name, performed)


def undisturbed(program: Program, root: Path) -> str:
    """The digest that the program ends with when nothing happens to it."""
    quiet = Schedule(faults=[], checkpoint={"every": "100 steps"}, signals="tree", grace_s=30)
    performed = _perform(program, quiet, root, threading.Event())
    hold(not performed.problem, f"without faults: {performed.problem}", performed.text[-TAIL:])
    return performed.digest


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
                # A node that is only cut off lives on, with the attempt's processes on it.
                cut_off = {"partition_network": rng.random() < 0.5}
                faults += [{"at": at, "do": "fail-node", "node": node, **cut_off}, {"at": at, "do": "resume-node"}]
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
        # The article's training has none.
        writer_kills=(rng.randrange(5, 60),) if program is QUICKSTART and rng.random() < 0.4 else (),
        checkpoint={"every": f"{rng.choice([15, 40, 110])} steps", "keep": rng.randint(1, 3)},
        signals=rng.choice(["tree", "task"]),
        grace_s=rng.choice([5, 30]),
        # A process with torch in it costs more than all the rest of a training that needs none.
        preload=program is QUICKSTART or rng.random() < 0.2,
    )


@dataclass(frozen=True, kw_only=True)
class Performed:
    """How one run came out; ``problem`` is empty where it finished."""

    problem: str
    digest: str
    text: str
    num_attempts: int
    num_faults: int = 0


def must_equal(performed: Performed, reference: str, said: str) -> None:
    """The run finished with the ``reference`` digest; ``said`` is what a failure shows."""
    hold(not performed.problem, performed.problem, said)
    hold(performed.digest == reference, f"digest {performed.digest} instead of {reference}", said)


def count(tally: Tally, name: str, performed: Performed) -> None:
    say(f"{name}: as without faults ({performed.num_faults} faults, {performed.num_attempts} attempts)")
    tally.counts["schedules"] += 1
    tally.counts["faults in schedules"] += performed.num_faults
    tally.counts["attempts in schedules"] += performed.num_attempts


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
    meddler = Meddler(damages=schedule.damages, writer_kills=schedule.writer_kills, root=root)
    with _cluster(root):
        performed = perform(_config(program, schedule), root, stopping, tend=meddler.tend)
    return replace(performed, num_faults=_num_struck(performed.text) + meddler.num_done)


def perform(
    config: dict[str, Any],
    root: Path,
    stopping: threading.Event,
    *,
    env: Mapping[str, str] | None = None,
    tend: Callable[[RunPaths], None] = lambda paths: None,
) -> Performed:
    """Submit and follow a run below ``root``, a new directory. ``tend`` is called again and again until it is over."""
    root.mkdir()
    file = root / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    paths, output = RunPaths.of(RUN, root), root / "output.txt"
    with output.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", MAIN, "submit", str(file), "--wait", "--root", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=root,
            env={**os.environ, **(env or {}), "PYTHONPATH": str(REPOSITORY)},
        )
        problem = ""
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while child.poll() is None and not problem:
                if stopping.is_set() or time.monotonic() > deadline:
                    problem = "stopped" if stopping.is_set() else f"did not end within {TIMEOUT_S:.0f} s"
                tend(paths)
                time.sleep(POLL_S)
        finally:
            child.kill()
            child.wait()
    verdict = read_verdict(paths) or {}
    if not problem and (child.returncode or verdict.get("state") != "finished"):
        problem = f"exit {child.returncode}, {verdict.get('state')}: {verdict.get('why')} {verdict.get('error', '')}"
    return Performed(
        problem=problem,
        digest="" if problem else final_digest(paths),
        text=output.read_text(errors="replace"),
        num_attempts=len(read_ends(paths)),
    )


def common_keys(program: Program, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """What a run of the program has in its configuration on any cluster."""
    return {
        **program.keys,
        "name": RUN,
        "python": sys.executable,
        "time": "10m",
        "checkpoint": dict(checkpoint),
        # The faults are ours: none of them counts against the run.
        "restart": {
            "backoff": "0s",
            "max_crashes": 20,
            "max_worker_restarts": 20,
            "same_step": 20,
            "exclude_nodes": False,
        },
        "hang": {"floor": "5s", "ceiling": "60s"},
    }


def _config(program: Program, schedule: Schedule) -> dict[str, Any]:
    partitions = [
        {"name": "low", "tier": 1, "preempt": "requeue", "grace": f"{schedule.grace_s}s"},
        {"name": "high", "tier": 10},
    ]
    return {
        **common_keys(program, schedule.checkpoint),
        "cluster": "fake",
        "signal_lead": "20s",
        "preload": schedule.preload,
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


def _num_struck(text: str) -> int:
    """The faults that did strike: a run may be over before the moment of its last ones."""
    return sum(line.startswith("fault ") and " at step " in line for line in text.splitlines())
