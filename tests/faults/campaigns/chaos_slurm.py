"""Random schedules on a real Slurm on this machine: what Slurm itself does to a run, and a node that dies under it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from resilient_launch.core.events import read_events
from resilient_launch.core.paths import RunPaths
from resilient_launch.report.attempts import AttemptRow, attempt_rows
from tests.faults.campaigns.chaos import (
    ARTICLE,
    QUICKSTART,
    REPOSITORY,
    TAIL,
    Program,
    common_keys,
    count,
    must_equal,
    perform,
    undisturbed,
)
from tests.faults.campaigns.tally import Tally, say

ENDS_AN_ATTEMPT = ("preempt", "requeue", "notice", "lose-node", "kill-node")
COMMAND_TIMEOUT_S = 60.0


def chaos_slurm(tally: Tally) -> None:
    """The short form plays one schedule, with a preemption and a dead node in it."""
    testcluster = _testcluster()
    if missing := testcluster.missing_requirements():
        tally.left_out.append(f"chaos on a real Slurm: {'; '.join(missing)}")
        return
    programs = [ARTICLE, QUICKSTART] if tally.is_long else [ARTICLE]
    for program in programs:
        num_schedules = (8 if program is ARTICLE else 3) if tally.is_long else 1
        names = [f"slurm-{program.name}-{number}" for number in range(num_schedules)]
        names = [name for name in names if tally.wants(name)]
        if names:
            with tempfile.TemporaryDirectory(prefix="rlaunch-chaos-") as scratch, _cluster(testcluster) as env:
                reference = undisturbed(program, Path(scratch) / "reference")
                for name in names:
                    with tally.case("chaos-slurm", name):
                        faults = draw(program, random.Random(f"{tally.seed}/{name}"), is_long=tally.is_long)
                        driver = _Driver(faults, env)
                        try:
                            performed = perform(
                                _config(program), Path(scratch) / name, threading.Event(), env=env, tend=driver.tend
                            )
                        finally:
                            driver.heal()
                            driver.cancel_all()
                        must_equal(performed, reference, f"{faults}, {driver.done}\n{performed.text[-TAIL:]}")
                        say(f"{name}: {'; '.join(driver.done)}")
                        count(tally, name, replace(performed, num_faults=len(driver.done)))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``verb`` is done when the run has come to ``step``, to the node or worker of number ``target``."""

    step: int
    verb: str
    target: int


def draw(program: Program, rng: random.Random, *, is_long: bool) -> list[Fault]:
    """Something of each kind, in any order; the short form has the two that only a real Slurm can show."""
    verbs = ["preempt", rng.choice(["lose-node", "kill-node"])]
    if is_long:
        verbs += ["requeue", rng.choice(["kill-worker", "notice"])]
    rng.shuffle(verbs)
    steps = sorted(rng.sample(range(5, program.steps * 3 // 4), len(verbs)))
    return [Fault(step=step, verb=verb, target=rng.randrange(8)) for step, verb in zip(steps, verbs, strict=True)]


class _Driver:
    """Does the faults to a run, one after another. What a fault broke is mended once a later attempt is running."""

    def __init__(self, faults: Sequence[Fault], env: dict[str, str]) -> None:
        self._left, self._env, self._began = list(faults), env, time.monotonic()
        self._is_over_at = -1
        self._broken: list[tuple[str, Callable[[], object]]] = []
        self.done: list[str] = []

    def tend(self, paths: RunPaths) -> None:
        rows = attempt_rows(paths)
        if not rows or rows[-1].cause is not None or rows[-1].end_step is None or rows[-1].number <= self._is_over_at:
            return
        self.heal()
        row = rows[-1]
        if not self._left or row.end_step is None or row.end_step < self._left[0].step:
            return
        fault = self._left.pop(0)
        if fault.verb in ENDS_AN_ATTEMPT:
            self._is_over_at = row.number
        self._strike(fault, row, paths)
        self.done.append(f"{time.monotonic() - self._began:.0f} s: {fault.verb} at step {row.end_step}")

    def heal(self) -> None:
        """Bring lost nodes back, with what still runs on them."""
        while self._broken:
            node, mend = self._broken.pop()
            mend()
            # Refused where the node has come back by itself.
            self._slurm("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def cancel_all(self) -> None:
        self._slurm("scancel", "--user=root", check=False)

    def _strike(self, fault: Fault, row: AttemptRow, paths: RunPaths) -> None:
        job_id, node = str(row.job_id), row.nodes[fault.target % len(row.nodes)]
        match fault.verb:
            case "preempt":
                words = ["--partition=high", f"--nodelist={node}", "--exclusive", "--output=/dev/null", "--wrap=true"]
                self._slurm("sbatch", *words)
            case "requeue":
                self._slurm("scontrol", "requeue", job_id)
            case "notice":
                self._slurm("scancel", "--signal=USR1", job_id)
            case "kill-worker":
                self._kill_worker(paths, fault.target)
            case "lose-node" | "kill-node":
                slurmd = _slurmd_of(node, self._env)
                if fault.verb == "lose-node":
                    # The attempt's processes live on where nobody sees them.
                    os.kill(slurmd, signal.SIGSTOP)
                    self._broken.append((node, lambda: os.kill(slurmd, signal.SIGCONT)))
                else:
                    self._broken.append((node, _starter(slurmd)))
                    for pid in (slurmd, *_job_on(node, self._env)):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                self._slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=chaos")

    def _kill_worker(self, paths: RunPaths, target: int) -> None:
        begun = [event for event in read_events(paths.events) if event["kind"] == "group_begin"]
        pids = sorted(max(begun, key=lambda event: float(event["t"]))["pids"].values())
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pids[target % len(pids)]), signal.SIGKILL)

    def _slurm(self, *command: str, check: bool = True) -> None:
        subprocess.run(
            command,
            env=self._env,
            check=check,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if check else subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            cwd="/",
        )


def _config(program: Program) -> dict[str, Any]:
    keys = common_keys(program, {"every": f"{program.steps // 8} steps", "keep": 2})
    if program is ARTICLE:
        # Slow enough for a fault to come between two looks at the run.
        keys["args"] = [*keys["args"][:-1], "0.02"]
    return {
        **keys,
        "cluster": "slurm",
        "partition": "low",
        "signal_lead": "59s",
        # A process with torch in it costs more than all the rest of a training that needs none.
        "preload": program is not ARTICLE,
    }


def _slurmd_of(node: str, env: Mapping[str, str]) -> int:
    for pid in _processes(f"SLURM_CONF={env['SLURM_CONF']}"):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if words[0].endswith("slurmd") and {"-N", node} <= set(words):
                return pid
    raise AssertionError(f"no slurmd of {node}")


def _starter(pid: int) -> Callable[[], object]:
    """What starts a daemon again as it was started."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    env = dict(pair.split(b"=", 1) for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in pair)
    nowhere = subprocess.DEVNULL
    return lambda: subprocess.Popen(words, env=env, stdin=nowhere, stdout=nowhere, stderr=nowhere, cwd="/")


def _job_on(node: str, env: Mapping[str, str]) -> list[int]:
    """Every process of a job on a node, and Slurm's own that watch them."""
    found = set(_processes(f"SLURM_CONF={env['SLURM_CONF']}")) & set(_processes(f"SLURMD_NODENAME={node}"))
    for pid in list(found):
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if Path(f"/proc/{parent}/comm").read_text().strip() == "slurmstepd":
                found.add(parent)
    return sorted(found)


def _processes(variable: str) -> list[int]:
    """Processes with ``variable``, NAME=value, in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # Any of them may end while it is looked at.
        with contextlib.suppress(OSError):
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


@contextlib.contextmanager
def _cluster(testcluster: ModuleType) -> Iterator[dict[str, str]]:
    # Its path must be short, which TMPDIR need not be.
    cluster = testcluster.TestCluster(tempfile.mkdtemp(prefix="rlaunch-slurm-", dir="/tmp"))
    cluster.up(testcluster.ClusterSpec(grace_s=4, kill_wait_s=2), until_exit_of=os.getpid())
    try:
        yield {**os.environ, **cluster.env()}
    finally:
        cluster.down()


def _testcluster() -> ModuleType:
    path = REPOSITORY / "slurm" / "testcluster" / "cluster.py"
    spec = importlib.util.spec_from_file_location("testcluster", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["testcluster"] = module
    spec.loader.exec_module(module)
    return module
