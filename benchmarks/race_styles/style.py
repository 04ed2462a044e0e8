"""How the race sets each style up, submits it, and reads what its processes wrote down."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STYLES = Path(__file__).resolve().parent
REPOSITORY = STYLES.parent.parent
MAIN = "from resilient_launch.cli.main import main; main()"
TORCHRUN_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=race-torchrun
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={directory}/%j.out
#SBATCH --partition=low
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --mem=1G
#SBATCH --time={minutes}
srun {python} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 3 \\
    --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} {script}
"""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How long the job is, and how often it saves."""

    steps: int
    every: int
    step_s: float = 0.03


class Style:
    """One way to run the job. ``directory`` holds the record of the steps."""

    def __init__(self, name: str, directory: Path, env: Mapping[str, str], size: Size) -> None:
        self.name, self.directory, self.size = name, directory, size
        directory.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.env = {
            **env,
            "PYTHONPATH": os.pathsep.join([str(STYLES), str(REPOSITORY)]),
            "RACE_DIR": str(directory),
            "RACE_STEPS": str(size.steps),
            "RACE_EVERY": str(size.every),
            "RACE_PORT": str(self.port),
            "OMP_NUM_THREADS": "1",
        }

        self.pace(size.step_s)

    def pace(self, step_s: float) -> None:
        """Make a step last so long at least, from the next one on."""
        temporary = self.directory / "pace.new"
        temporary.write_text(str(step_s))
        temporary.replace(self.directory / "pace")

    def submit(self) -> str:
        """Submit, or submit again; returns the job id."""
        if self.name == "rlaunch":
            config = self.directory / "config.yaml"
            config.write_text(json.dumps(self._config()))
            return self._run(sys.executable, "-c", MAIN, "submit", str(config), "--parsable").strip()
        if self.name == "torchrun":
            script = self.directory / "job.sh"
            words = {"directory": self.directory, "minutes": 60, "python": sys.executable, "port": self.port}
            script.write_text(TORCHRUN_SCRIPT.format(**words, script=STYLES / "race_torchrun.py"))
            return self._run("sbatch", "--parsable", str(script)).strip()
        return self._run(
            sys.executable, str(STYLES / "race_submitit.py"), str(self.directory / "submitit"), "60"
        ).split()[-1]

    def _config(self) -> dict[str, Any]:
        return {
            "name": "race",
            "script": "race_rlaunch.py",
            "workdir": str(STYLES),
            "python": sys.executable,
            "nodes": 2,
            "time": "1h",
            "signal_lead": "90s",
            "partition": "low",
            "memory": "1G",
            "checkpoint": {"every": f"{self.size.every} steps"},
        }

    def _run(self, *command: str) -> str:
        env = {**self.env, "RLAUNCH_ROOT": str(self.directory / "runs")}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode:
            raise RuntimeError(f"{command[0]}: {done.stderr}{done.stdout}")
        return done.stdout

    def steps(self) -> list[tuple[int, float]]:
        """Every step that was computed: how many are complete, and when; the order is that of time."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for line in (self.directory / "steps.jsonl").read_text().splitlines():
                with contextlib.suppress(ValueError):
                    step, at = json.loads(line)
                    found.append((int(step), float(at)))
        return found

    def digest(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "digest").read_text()
        return ""

    def durable_at(self, before: float) -> float | None:
        """When the last checkpoint before ``before`` became durable, for the style that says so."""
        times = []
        for path in (self.directory / "runs" / "race" / "events").glob("a*.w00000.jsonl"):
            for line in path.read_text().splitlines():
                event = json.loads(line) if line.endswith("}") else {}
                if event.get("kind") == "checkpoint" and event.get("status") == "durable" and event["t"] <= before:
                    times.append(float(event["t"]))
        return max(times, default=None)
