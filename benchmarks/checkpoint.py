"""What a checkpoint costs, against the machine's own limits and torch's ways of saving, all in the same run.

``python -m benchmarks.checkpoint [--json] [--quick] [--case SIZE-RANKS ...] [--directory DIR]``. Cases are states of
100 MB and 1.4 GB (weights and AdamW moments in float32) on one and on two gloo ranks, each rank in a process of its
own; ``--quick`` is 100 MB on one rank. In every repetition each way of saving takes its turn, so that all see the same
machine; a goal compares the medians, ``spread`` is the least and greatest ratio of the repetitions. Ranks report the
slowest of them. Peers: torch.distributed.checkpoint's async_save in its process and thread modes with a stager that is
kept (the faster counts), and torch.save with fsync.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checkpoint_ways import DCP_MODES, Case, serve_case

CASES = (
    Case(name="100MB-1", width=512, num_layers=32, world_size=1),
    Case(name="100MB-2", width=512, num_layers=32, world_size=2),
    Case(name="1.4GB-1", width=2048, num_layers=28, world_size=1),
    Case(name="1.4GB-2", width=2048, num_layers=28, world_size=2),
)
REPETITIONS, QUICK_REPETITIONS = 5, 3
MEMORY_SAVES, QUICK_MEMORY_SAVES, LARGE_MEMORY_SAVES = 100, 20, 10
"""A hundred saves of the small states; as many of the large ones would show the same at fourteen times the writing."""
TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One goal: ``value`` is at most (or, ``at_least``, at least) ``goal`` times ``against``."""

    case: str
    name: str
    value: float
    against: float
    goal: float
    at_least: bool
    spread: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.value / self.against if self.against else float("inf")

    @property
    def met(self) -> bool:
        return self.ratio >= self.goal if self.at_least else self.ratio <= self.goal

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        low, high = self.spread
        return (
            f"{self.case:8} {self.name:52} {self.value:9.4f} {self.against:9.4f} {self.ratio:7.2f} "
            f"({low:.2f}..{high:.2f}) {sign} {self.goal:<5} {'met' if self.met else 'MISSED'}"
        )


def figures(case: str, taken: Mapping[str, Sequence[float]]) -> list[Figure]:
    """The goals from one case's repetitions, each name a list of seconds (or bytes, or steps a second)."""
    best_dcp = min((f"dcp {mode}" for mode in DCP_MODES), key=lambda mode: median(taken[f"{mode} durable"]))
    quick_dcp = min((f"dcp {mode}" for mode in DCP_MODES), key=lambda mode: median(taken[f"{mode} blocking"]))
    rows = [
        ("blocking, against memmove", "ours blocking", "memmove", 1.2, False),
        (f"blocking, against {quick_dcp}", "ours blocking", f"{quick_dcp} blocking", 0.8, False),
        ("durable, against raw direct write + fsync", "ours durable", "raw", 1.35, False),
        (f"durable, against {best_dcp}", "ours durable", f"{best_dcp} durable", 0.5, False),
        ("durable, against torch.save + fsync", "ours durable", "torch.save", 0.7, False),
        ("steps a second while writing, against not writing", "steps writing", "steps", 0.92, True),
        ("verified load, against reading, not in cache", "load cold", "read cold", 1.25, False),
        ("verified load, against reading, in cache", "load warm", "read warm", 1.25, False),
        ("notice to durable, against step + raw write", "notice", "step + raw", 1.5, False),
        ("memory after many saves, against after the fifth", "memory", "memory early", 1.02, False),
    ]
    return [
        Figure(
            case=case,
            name=name,
            value=median(taken[value]),
            against=median(taken[against]),
            goal=goal,
            at_least=at_least,
            spread=_spread(taken[value], taken[against]),
        )
        for name, value, against, goal, at_least in rows
    ]


def _spread(values: Sequence[float], against: Sequence[float]) -> tuple[float, float]:
    ratios = [value / other for value, other in zip(values, against, strict=True)]
    return min(ratios), max(ratios)


def run_case(case: Case, directory: Path, *, repetitions: int, memory_saves: int) -> dict[str, list[float]]:
    """Measure on ``case.world_size`` fresh processes; of every single figure the slowest rank's."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    processes = []
    for rank in range(case.world_size):
        ours, theirs = context.Pipe()
        arguments = (case, rank, store.port, directory, repetitions, memory_saves, theirs)
        # Not a daemon: torch's peers start processes of their own.
        process = context.Process(target=serve_case, args=arguments)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    try:
        results: list[dict[str, list[float]]] = []
        for rank, pipe in enumerate(pipes):
            if not pipe.poll(TIMEOUT_S):
                raise TimeoutError(f"rank {rank} of {case.name} is silent")
            result = pipe.recv()
            if isinstance(result, str):
                raise RuntimeError(result)
            results.append(result)
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    worst = {name: min if name.startswith("steps") else max for name in results[0]}
    return {
        name: [worst[name](each) for each in zip(*(result[name] for result in results), strict=True)]
        for name in results[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="the first case alone, three repetitions")
    parser.add_argument("--case", action="append", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--directory", type=Path, default=Path("build"), help="where to write; a real disk")
    options = parser.parse_args()
    names = options.case or ([CASES[0].name] if options.quick else [case.name for case in CASES])
    repetitions = QUICK_REPETITIONS if options.quick else REPETITIONS
    memory_saves = QUICK_MEMORY_SAVES if options.quick else MEMORY_SAVES
    options.directory.mkdir(parents=True, exist_ok=True)
    goals: list[Figure] = []
    taken: dict[str, dict[str, list[float]]] = {}
    for case in CASES:
        if case.name not in names:
            continue
        directory = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=options.directory))
        try:
            saves = min(memory_saves, LARGE_MEMORY_SAVES) if case.width > CASES[0].width else memory_saves
            taken[case.name] = run_case(case, directory, repetitions=repetitions, memory_saves=saves)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        goals += figures(case.name, taken[case.name])
        if not options.json:
            print("\n".join(map(str, goals[-10:])), flush=True)
    if options.json:
        print(json.dumps({"schema": 1, "goals": [goal.to_json() for goal in goals], "taken": taken}))
    sys.exit(0 if all(goal.met for goal in goals) else 1)


if __name__ == "__main__":
    main()
