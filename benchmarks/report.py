"""What reading a run's events costs, and what writing them costs a step.

    python -m benchmarks.report [--json] [--quick] [--steps N ...] [--ranks R]

Each size is measured in a process of its own: 500 event files, written as training writes them (windows of 50 steps).
Seconds and events per second are of ``run_report``, peak memory is the whole process's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import Attempt
from resilient_launch.job.run import WINDOW_STEPS
from resilient_launch.report.accounts import RunFacts, run_report

NUM_FILES = 500
SIZES = (100_000, 1_000_000, 10_000_000)


def write_run(root: Path, num_steps: int, num_ranks: int) -> RunPaths:
    """A run whose rank files hold ``num_steps`` steps in all; each attempt has ``num_ranks`` of them and an agent's."""
    paths = RunPaths(root / "bench")
    for directory in paths.all():
        directory.mkdir(parents=True)
    num_attempts = NUM_FILES // (num_ranks + 1)
    per_file = num_steps // (num_attempts * num_ranks)
    now_s, first = 1_700_000_000.0, 0
    for number in range(num_attempts):
        claim = Attempt(
            number=number,
            job_id="1",
            slurm_restart_count=number,
            nodes=("n0",),
            addresses=(),
            port=1,
            claimed_at=now_s,
        )
        paths.attempt(number).write_text(json.dumps(asdict(claim)))
        for rank in range(num_ranks):
            with (paths.events / f"a{number:04d}.r0.w{rank:05d}.jsonl").open("w") as file:
                _write_rank(file, number, rank, now_s, first, per_file)
        line = {"v": 1, "kind": "attempt", "t": now_s, "mono": now_s - 1e9, "attempt": number, "restart": 0, "node": 0}
        line |= {"job_id": "1", "slurm_restart_count": number, "nodes": ["n0"]}
        (paths.events / f"a{number:04d}.n0000.jsonl").write_text(json.dumps(line) + "\n")
        first += per_file * 9 // 10
        now_s += per_file * 0.1 + 100.0
    return paths


def _write_rank(file: Any, number: int, rank: int, begin_s: float, first: int, num_steps: int) -> None:
    identity = {"attempt": number, "restart": 0, "node": 0, "rank": rank}
    loop_s = begin_s + 30.0

    def say(kind: str, at_s: float, **fields: Any) -> None:
        record = {"v": 1, "kind": kind, "t": round(at_s, 6), "mono": round(at_s - 1e9, 6), **identity, **fields}
        file.write(json.dumps(record, separators=(",", ":")) + "\n")

    say("phase", begin_s + 10.0, phase="restore")
    say("phase", loop_s, phase="first_step")
    for done in range(0, num_steps, WINDOW_STEPS):
        count = min(WINDOW_STEPS, num_steps - done)
        ends = [round((done + step + 1) * 0.1 + 0.0001 * (step % 7), 6) for step in range(count)]
        own = [0.09 + 0.001 * ((rank + step) % 5) for step in range(count)]
        at_s = loop_s + ends[-1]
        say("window", at_s, first=first + done, mono0=round(loop_s - 1e9, 6), end_s=ends, local_s=own)
        if done % 5000 == 0 and done:
            say("checkpoint", at_s, step=first + done + count, status="begin", reason="time")
            say("checkpoint", at_s + 0.05, step=first + done + count, status="durable", reason="time", blocking_s=0.05)


def measure_reading(num_steps: int, num_ranks: int) -> dict[str, Any]:
    """Write, then read in a process of its own, a run of ``num_steps`` steps."""
    with tempfile.TemporaryDirectory() as directory:
        paths = write_run(Path(directory), num_steps, num_ranks)
        files = list(paths.events.iterdir())
        command = [sys.executable, "-m", "benchmarks.report", "--read", str(paths.directory)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        size = sum(file.stat().st_size for file in files)
        return {"steps": num_steps, "files": len(files), "bytes": size, **json.loads(done.stdout)}


def read(directory: Path) -> dict[str, Any]:
    """Account for the run in ``directory`` and say what it took."""
    began, began_cpu = time.perf_counter(), time.process_time()
    facts = RunFacts(paths=RunPaths(directory), created_at=None, rows={}, is_live=False, now=0.0)
    report = run_report(facts)
    seconds = time.perf_counter() - began
    assert report.goodput is not None and report.goodput > 0
    return {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(time.process_time() - began_cpu, 3),
        "events_per_s": round(report.damage.num_events / seconds),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "goodput": report.goodput,
    }


def measure_writing(num_steps: int = 200_000) -> dict[str, float]:
    """Microseconds a step of keeping a step's end and emitting windows, into a file in the temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        writer = EventWriter(Path(directory) / "a0000.r0.w00000.jsonl", attempt=0, restart=0, node=0, rank=0)
        ends: list[float] = []
        began = time.perf_counter()
        for step in range(num_steps):
            ends.append(time.monotonic() - began)
            if len(ends) >= WINDOW_STEPS:
                rounded = [round(end, 6) for end in ends]
                writer.emit("window", flush=True, first=step, mono0=0.0, end_s=rounded)
                ends.clear()
        writer.close()
        return {"us_per_step": round((time.perf_counter() - began) / num_steps * 1e6, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--quick", action="store_true", help="the smallest size only")
    parser.add_argument("--steps", type=int, nargs="+", default=SIZES, help="steps over all files")
    parser.add_argument("--ranks", type=int, default=4, help="rank files of an attempt")
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(read(options.read)))
        return
    sizes = options.steps[:1] if options.quick else options.steps
    result: dict[str, Any] = {
        "reading": [measure_reading(num_steps, options.ranks) for num_steps in sizes],
        "writing": measure_writing(),
    }
    if options.json:
        print(json.dumps(result))
        return
    for row in result["reading"]:
        size = f"{row['steps']:>10,} steps in {row['files']} files ({row['bytes'] / 1e6:,.0f} MB)"
        print(f"{size}: {row['seconds']:.2f} s, {row['events_per_s']:,} events/s, {row['peak_mib']} MiB")
    print(f"writing: {result['writing']['us_per_step']} µs a step")


if __name__ == "__main__":
    main()
