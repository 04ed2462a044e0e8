"""What an end-to-end test works with: a directory of runs, a small training script, and the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from waiting import wait_for

from resilient_launch.checkpoint.digest import state_digest
from resilient_launch.checkpoint.store import published
from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.launch.clusters import fake_state_dir
from resilient_launch.report.state import read_verdict

REPOSITORY = Path(__file__).resolve().parents[2]
MAIN = "from resilient_launch.cli.main import main; main()"

TRAINING = '''
"""A linear model with dropout, momentum and a shuffled sampler: small, and hard to resume exactly."""
import argparse, os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
import resilient_launch as rl

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=250)
options.add_argument("--step-s", type=float, default=0.01)
# From this step on, the first lives are slow, until there is a file "fast": time for what interrupts them.
options.add_argument("--slow-from", type=int)
options.add_argument("--slow-lives", type=int, default=1)
options.add_argument("--slow-s", type=float, default=0.2)
options.add_argument("--run-dir")
options.add_argument("--every-steps", type=int)
options.add_argument("--loaders", type=int, default=0)
options.add_argument("--crash-at", type=int)
options.add_argument("--crash-once-at", type=int)
options = options.parse_args()


def is_slow(run, step):
    if options.slow_from is None or step < options.slow_from or Path("fast").exists():
        return False
    return run.attempt < options.slow_lives and run.restart == 0


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        if options.loaders:
            time.sleep(0.002)
        return torch.randn(8, generator=torch.Generator().manual_seed(index))


def main():
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    with rl.attach(options.run_dir, every_steps=options.every_steps) as run:
        run.seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
        if run.world_size > 1:
            model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        numbers = Numbers()
        sampler = rl.ResumableSampler(len(numbers), batch_size=4, rank=run.rank, world_size=run.world_size, seed=3)
        state = rl.TrainState(model=model, optimizer=optimizer, data=sampler)
        run.restore(state)
        if options.loaders:
            batches = iter(torch.utils.data.DataLoader(
                numbers, batch_sampler=sampler, num_workers=options.loaders, prefetch_factor=8,
                # A loader draws its seed when it is made; from the default generator that would move the dropout.
                generator=torch.Generator()))
        else:
            batches = (torch.stack([numbers[i] for i in indices]) for indices in sampler.batches())
        for step in run.steps(state, until=options.steps):
            loss = (model(next(batches)) ** 2).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            run.log(step, loss=loss.item())
            time.sleep(options.slow_s if is_slow(run, step) else options.step_s)
            print(f"step {step}", flush=True)
            if step == options.crash_at:
                raise ValueError("the loss went through the roof")
            if step == options.crash_once_at and run.attempt == run.restart == 0 and run.rank == 0:
                os._exit(9)
    if dist.is_initialized():
        dist.destroy_process_group()
    print("the end of the script", flush=True)


main()
'''


class RunBench:
    """A root for runs with its own fake cluster, a working directory with ``train.py``, and one run at a time."""

    def __init__(self, directory: Path, *, root_name: str = "runs", workdir_name: str = "work") -> None:
        self.root = directory / root_name
        self.workdir = directory / workdir_name
        self.workdir.mkdir()
        (self.workdir / "train.py").write_text(TRAINING)
        self.env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RLAUNCH_ROOT": str(self.root)}
        self.fake = FakeCluster(fake_state_dir(self.root))

    python = sys.executable

    def close(self) -> None:
        self.fake.down()

    # The command line.

    def rlaunch(
        self, *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = 150.0
    ) -> subprocess.CompletedProcess[str]:
        """Run the command line in a process of its own."""
        return subprocess.run(
            [sys.executable, "-c", MAIN, *arguments],
            env={**self.env, **(env or {})},
            cwd=self.workdir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def config(self, name: str, args: Sequence[str] = (), **keys: Any) -> Path:
        """Write a configuration for ``train.py`` on a fake cluster; ``keys`` replace whole top-level ones."""
        fake = {
            "nodes": 2,
            "cpus": 4,
            "requeue_delay": "0s",
            "kill_wait": "5s",
            "partitions": [
                {"name": "low", "tier": 1, "preempt": "requeue", "grace": "30s"},
                {"name": "high", "tier": 10},
            ],
        }
        values: dict[str, Any] = {
            "name": name,
            "cluster": "fake",
            "script": "train.py",
            "args": list(args),
            "python": sys.executable,
            "time": "10m",
            "signal_lead": "30s",
            "checkpoint": {"every": "100000 steps"},
            "fake": {**fake, **keys.pop("fake", {})},
            **keys,
        }
        values = {key: value for key, value in values.items() if value is not None}
        path = self.workdir.parent / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"workdir": str(self.workdir), **values}))
        return path

    def submit(self, config: Path, *options: str) -> str:
        """Submit without waiting; returns the job id."""
        done = self.rlaunch("submit", str(config), "--parsable", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait(self, name: str, expect: int = 0) -> str:
        """``rlaunch wait``: returns its last words."""
        done = self.rlaunch("wait", name, "--timeout", "120")
        assert done.returncode == expect, f"{done.returncode}: {done.stdout}{done.stderr}{self.trace(name)}"
        return done.stdout

    def status(self, name: str) -> dict[str, Any]:
        done = self.rlaunch("status", name, "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    # What a run leaves.

    def paths(self, name: str) -> RunPaths:
        return RunPaths.of(name, self.root)

    @property
    def slurm(self) -> SlurmCommands:
        return SlurmCommands({**self.env, **self.fake.env()})

    def slurm_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **self.fake.env()}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

    def logs(self, name: str, attempt: int = 0) -> str:
        files = sorted(self.paths(name).attempt_logs(attempt).glob("*.log"))
        return "".join(file.read_text() for file in files)

    def batch_log(self, name: str) -> str:
        return "".join(file.read_text() for file in sorted(self.paths(name).submitit.glob("*.out")))

    def trace(self, name: str) -> str:
        """What a failed test shows."""
        attempts = sorted(self.paths(name).logs.glob("*"))
        logs = "".join(self.logs(name, int(attempt.name))[-1500:] for attempt in attempts)
        return f"\n{self.batch_log(name)[-6000:]}\n{logs}"

    def wait_step(self, name: str, step: int, attempt: int = 0) -> None:
        """Until a worker has printed that it is beyond ``step``."""

        def reached() -> bool:
            words = [line.split() for line in self.logs(name, attempt).splitlines() if line.startswith("step ")]
            return any(int(word[1]) >= step for word in words if len(word) == 2 and word[1].isdigit())

        wait_for(reached, what=f"step {step} of {name}")

    def wait_line(self, name: str, line: str, attempt: int = 0) -> None:
        wait_for(lambda: line in self.logs(name, attempt).splitlines(), what=f"{line!r} of {name}")

    def wait_attempt(self, name: str, number: int) -> None:
        wait_for(self.paths(name).attempt(number).exists, what=f"attempt {number} of {name}")

    def events(self, name: str, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.paths(name).events) if event["kind"] == kind]

    def worker(self, name: str, rank: int) -> tuple[int, str]:
        """The process of a rank of the newest worker group, and its node; waits for it."""

        def find() -> dict[str, Any] | None:
            begun = [event for event in self.events(name, "group_begin") if str(rank) in event["pids"]]
            return max(begun, key=lambda event: float(event["t"]), default=None)

        event = wait_for(find, what=f"worker {rank} of {name}")
        claimed = json.loads(self.paths(name).attempt(int(event["attempt"])).read_text())
        return int(event["pids"][str(rank)]), str(claimed["nodes"][event["node"]])

    def verdict(self, name: str) -> dict[str, Any]:
        found = read_verdict(self.paths(name))
        assert found is not None, self.trace(name)
        return found

    def digest(self, name: str) -> str:
        return newest_digest(self.paths(name).checkpoints)


def newest_digest(checkpoints: Path) -> str:
    """The digest of the newest checkpoint's state."""
    return state_digest(checkpoints / str(published(checkpoints)[0]))


def marked(text: str) -> list[int]:
    """Ids of live processes with ``text`` in their environment or command line, this one aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            seen = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in seen:
            found.append(int(entry.name))
    return found
