"""The fake Slurm: its commands' start-up, submit-to-start, and what a long queue on many nodes costs.

``python -m benchmarks.fake [--json] [--quick]``. Figures are against starts of a bare Python in the same run, taken
in turn with what is measured: a submission cannot do with less than two (sbatch, and the job's supervisor). The 0.3 s
that a job may wait on an idle cluster stand alone, and want a machine that does nothing else.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import common
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.spec import FakeSpec

SUBMIT_TO_START_S = 0.3
NUM_NODES = 64
NUM_QUEUED, NUM_QUEUED_QUICKLY = 500, 100


class _Slurm:
    """One fake cluster and its commands."""

    def __init__(self, directory: Path, spec: FakeSpec) -> None:
        self.cluster = FakeCluster(directory / "state")
        self.cluster.up(spec)
        self._directory = directory
        self._env = {**os.environ, **self.cluster.env()}

    def run(self, *words: str) -> str:
        return subprocess.run(
            words, env=self._env, cwd=self._directory, check=True, capture_output=True, text=True
        ).stdout

    def start_s(self) -> float:
        """From the start of sbatch until the batch script's first command has run."""
        mark = self._directory / "started"
        mark.unlink(missing_ok=True)
        begun = time.perf_counter()
        self.run("sbatch", "--output=/dev/null", f"--wrap=: > {mark}")
        while not mark.exists():
            time.sleep(0.001)
        return time.perf_counter() - begun


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def _bare() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True, capture_output=True)


def _idle(directory: Path, rounds: int) -> list[common.Goal]:
    slurm = _Slurm(directory, FakeSpec())
    try:
        bare: list[float] = []
        squeue: list[float] = []
        start: list[float] = []
        for number in range(rounds + 1):
            taken = (_timed(_bare), _timed(lambda: slurm.run("squeue")), slurm.start_s())
            # The first round fills the caches.
            if number:
                for values, value in zip((bare, squeue, start), taken, strict=True):
                    values.append(value)
    finally:
        slurm.cluster.down(remove=True)
    bare_s = statistics.median(bare)
    return [
        # Its shell, its Python, and the controller's turn.
        common.ratio("squeue, s, against a bare Python", statistics.median(squeue), bare_s, 2.0),
        common.ratio("submit to start on an idle cluster, s, against two", statistics.median(start), 2 * bare_s, 3.0),
        common.at_most("submit to start on an idle cluster, s", statistics.median(start), SUBMIT_TO_START_S),
    ]


def _busy(directory: Path, rounds: int, num_queued: int) -> list[common.Goal]:
    """Submissions to an empty queue against the same with hundreds waiting, each of another shape."""
    slurm = _Slurm(directory, FakeSpec(num_nodes=NUM_NODES, cpus=8))
    try:
        blocker = slurm.run("sbatch", "--parsable", f"-N{NUM_NODES}", "--exclusive", "--wrap=sleep 3600").strip()
        held = lambda: slurm.run("sbatch", "-N2", "--time=30", "--wrap=true")  # noqa: E731
        empty = [_timed(held) for _ in range(rounds)]
        for number in range(num_queued):
            slurm.run("sbatch", f"-N{1 + number % NUM_NODES}", f"--time={10 + number}", "--wrap=true")
        full = [_timed(held) for _ in range(rounds)]
        queue = min(_timed(lambda: slurm.run("squeue")) for _ in range(rounds))
        bare_s = min(_timed(_bare) for _ in range(rounds))
        begun = time.perf_counter()
        slurm.run("scancel", blocker)
        while slurm.run("squeue", "-h").strip():
            time.sleep(0.2)
        drained_s = time.perf_counter() - begun
    finally:
        slurm.cluster.down(remove=True)
    count = num_queued + 2 * rounds
    return [
        common.ratio(
            f"sbatch with {num_queued} jobs waiting on {NUM_NODES} nodes, s, against an empty queue",
            min(full), min(empty), 3.0,
        ),
        common.ratio(f"squeue of {num_queued} jobs, s, against a bare Python", queue, bare_s, 5.0),
        common.ratio(f"a job of {count} that run one after the other, s, against two bare Pythons",
                     drained_s / count, 2 * bare_s, 4.0),
    ]  # fmt: skip


def measure(quick: bool) -> list[common.Goal]:
    """An idle cluster, then a busy one."""
    rounds, num_queued = (5, NUM_QUEUED_QUICKLY) if quick else (21, NUM_QUEUED)
    with tempfile.TemporaryDirectory() as name:
        for part in ("idle", "busy"):
            (Path(name) / part).mkdir()
        return [*_idle(Path(name) / "idle", rounds), *_busy(Path(name) / "busy", rounds, num_queued)]


if __name__ == "__main__":
    common.main(__doc__, measure)
