"""Start-up of the command line against a typer hello-world: medians of interleaved process runs.

``python -m benchmarks.startup [--json] [--quick]``. ``status`` is measured on a root without runs and on a finished run
of three attempts and 6000 steps.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import common
from resilient_launch.core.durable import replace_file
from resilient_launch.core.events import EventWriter
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.attempt import AttemptRecord, claim, record_end
from resilient_launch.launch.records import RunRecord, write_run

HELLO = """
import typer
app = typer.Typer()
@app.command()
def hello(name: str = "world") -> None:
    typer.echo(f"hello {name}")
app()
"""
RLAUNCH = "from resilient_launch.cli.main import main; main()"
NUM_ATTEMPTS = 3
STEPS_PER_ATTEMPT = 2000


def _make_run(root: Path) -> None:
    paths = RunPaths.of("run", root)
    paths.directory.mkdir(parents=True)
    for directory in paths.all():
        directory.mkdir()
    record = RunRecord(id="x", name="run", cluster="slurm", created_at=0.0, parent=None, code_version="v", jobs=("1",))
    write_run(paths, record)
    for number in range(NUM_ATTEMPTS):
        claim(
            paths,
            job_id="1",
            slurm_restart_count=number,
            nodes=["n1"],
            addresses=[],
            port=0,
            code_version="v",
        )
        events = EventWriter(paths.events / f"a{number:04d}.r0.w00000.jsonl", attempt=number, rank=0)
        begin = number * STEPS_PER_ATTEMPT
        events.emit(
            "resume",
            resume_step=begin,
            rework_steps=0,
            world_size=1,
            slurm_restart_count=number,
            torchelastic_restart_count=0,
            last_cause=None,
        )
        for first in range(begin, begin + STEPS_PER_ATTEMPT, 50):
            events.emit("window", first=first, mono0=0.0, end_s=[0.01 * step for step in range(50)])
        events.close()
        end = AttemptRecord(
            number=number, cause="finished", end_step=begin + STEPS_PER_ATTEMPT, ended_at=1.0, action="done", why=""
        )
        record_end(paths, end)
    replace_file(
        paths.verdict, b'{"state": "finished", "cause": "finished", "attempt": 2, "step": 6000, "why": "done"}'
    )


def _seconds(code: str, arguments: list[str], root: Path) -> float:
    env = {**os.environ, "PYTHONPATH": str(common.REPOSITORY), "RLAUNCH_ROOT": str(root)}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], env=env, check=True, capture_output=True)
    return time.perf_counter() - started


def measure(quick: bool) -> list[common.Goal]:
    """Each command once a round, all of them in every round."""
    with tempfile.TemporaryDirectory() as name:
        full, empty = Path(name) / "full", Path(name) / "empty"
        _make_run(full)
        commands = {
            "hello": (HELLO, [], empty),
            "version": (RLAUNCH, ["--version"], empty),
            "status": (RLAUNCH, ["status"], empty),
            "status of a run": (RLAUNCH, ["status", "run"], full),
        }
        times: dict[str, list[float]] = {key: [] for key in commands}
        # The first round fills the caches, and is not counted.
        for round_number in range(6 if quick else 21):
            for key, (code, arguments, root) in commands.items():
                seconds = _seconds(code, arguments, root)
                if round_number:
                    times[key].append(seconds)
    median_s = {key: statistics.median(values) for key, values in times.items()}
    hello_s = median_s["hello"]
    return [
        common.ratio("rlaunch --version, s, against a typer hello-world", median_s["version"], hello_s, 1.25),
        common.ratio("rlaunch status without runs, s", median_s["status"], hello_s, 2.0),
        common.ratio("rlaunch status of a finished run, s", median_s["status of a run"], hello_s, 2.0),
    ]


if __name__ == "__main__":
    common.main(__doc__, measure)
