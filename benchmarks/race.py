"""Three styles of launching one job, through three faults each, on a real Slurm: who comes back, with what lost.

    python -m benchmarks.race [--quick] [--styles rlaunch,torchrun,submitit] [--json]

The job: a small transformer, DDP over gloo on 2 nodes with one worker each, a checkpoint every so many steps. The
faults: a preemption by a job of a higher partition at a third, a real time limit at two thirds, SIGKILL of one worker
at five sixths. Each style is set up as its own documentation recommends; whenever its job is dead, a human (this
program) submits it again, and that is counted. Needs root and Debian's slurm-wlm and munge; starts a Slurm of its own
and takes it down.

Seconds are from the last step before a fault to the first *new* step after it, without the time that the job spent in
the queue. Rework are the steps computed again. The digest is that of model and optimizer at the end, against an
uninterrupted run of the same style.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from benchmarks.common import Goal, at_most, ratio
from benchmarks.race_styles.style import Size, Style
from resilient_launch.cluster.slurm_text import RUNNING_STATES

REPOSITORY = Path(__file__).resolve().parent.parent
FAULTS = ("preemption", "time limit", "crash")
PATIENCE_S = 420.0
"""No new step for so long: the style is given up."""
LIMIT_S = 15.0
"""How much is left at least when the time limit is pulled in; Slurm counts it in whole minutes of the job's run."""
STRIKE_PATIENCE_S = 130.0
"""By then a fault has struck: a minute's rounding of a limit, Slurm's scan, and KillWait."""
POLL_S = 0.1


@dataclass(kw_only=True)
class Outcome:
    """What became of one fault. ``seconds`` leaves out the queue; ``free_s`` is from the durable save to free nodes."""

    fault: str
    came_back: bool = False
    human_actions: int = 0
    rework: int | None = None
    seconds: float | None = None
    free_s: float | None = None


@dataclass(kw_only=True)
class Result:
    """One style's race."""

    style: str
    outcomes: list[Outcome] = field(default_factory=list)
    human_actions: int = 0
    digest_equal: bool | None = None


class Slurm:
    """The real one, and what this program asks of it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env

    def run(self, *command: str) -> str:
        env = {**self.env, "SLURM_TIME_FORMAT": "%s"}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout

    def state(self, job_id: str) -> str:
        found = self.run("squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T").strip()
        return "RUNNING" if found in RUNNING_STATES.split(",") else found

    def preempt(self) -> str:
        """A job of the higher partition that needs both nodes for a moment."""
        wrapped = ("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 1")
        return self.run("sbatch", "--parsable", "--time=1", *wrapped).strip()

    def limit(self, job_id: str) -> None:
        """Pull the job's time limit in, as near as its whole minutes allow."""
        start = int(self.run("squeue", "--noheader", f"--jobs={job_id}", "--format=%S").strip())
        self.run("scontrol", "update", f"JobId={job_id}", f"TimeLimit={int((time.time() - start + LIMIT_S) // 60) + 1}")

    def unlimit(self, job_id: str) -> None:
        """Give a job that waits its whole time limit back."""
        self.run("scontrol", "update", f"JobId={job_id}", "TimeLimit=60")


def race(style: Style, slurm: Slurm, result: Result, *, say: Callable[[str], None]) -> None:
    """Run one style through every fault to its end, and write down in ``result`` what became of each.

    Raises TimeoutError when it gets no further.
    """
    job = style.submit()
    marks = [style.size.steps // 3, 2 * style.size.steps // 3, 5 * style.size.steps // 6]
    for fault, mark in zip(FAULTS, marks, strict=True):
        job, _ = _until(style, slurm, job, result, partial(_has_reached, style, mark))
        outcome = Outcome(fault=fault)
        result.outcomes.append(outcome)
        humans = result.human_actions
        struck_at = time.time()
        _strike(fault, style, slurm, job)
        job, absent_s = _through(style, slurm, job, result, struck_at, outcome)
        outcome.human_actions = result.human_actions - humans
        outcome.came_back = outcome.human_actions == 0
        _measure(style, struck_at, absent_s, outcome)
        say(f"  {style.name}: {fault}: {_words(outcome)}")
    _until(style, slurm, job, result, partial(_is_done, style))


def _has_reached(style: Style, mark: int) -> bool:
    return any(step >= mark for step, _ in style.steps())


def _is_done(style: Style) -> bool:
    return bool(style.digest())


def _strike(fault: str, style: Style, slurm: Slurm, job: str) -> None:
    if fault != "crash":
        # A style that takes no notice trains on until it is killed, and must not be done before.
        left = style.size.steps - max((step for step, _ in style.steps()), default=0)
        style.pace(max(STRIKE_PATIENCE_S / max(left, 1), style.size.step_s))
    if fault == "preemption":
        slurm.preempt()
    elif fault == "time limit":
        slurm.limit(job)
    else:
        os.kill(int((style.directory / "pid.1").read_text()), signal.SIGKILL)


def _until(
    style: Style, slurm: Slurm, job: str, result: Result, condition: Callable[[], bool]
) -> tuple[str, list[tuple[float, float]]]:
    """Wait, being the human who submits a dead job again; returns the job, and when it had no nodes."""
    absences: list[tuple[float, float]] = []
    away_since: float | None = None
    is_slow = True
    patience = time.monotonic() + PATIENCE_S
    num_steps = len(style.steps())
    while not condition():
        state = slurm.state(job)
        if state not in ("RUNNING", "COMPLETING") and is_slow:
            # Struck: back to speed, and a limit that was pulled in must not strike again.
            style.pace(style.size.step_s)
            slurm.unlimit(job)
            is_slow = False
        if state == "RUNNING" and away_since is not None:
            absences.append((away_since, time.time()))
            away_since = None
        elif state not in ("RUNNING", "COMPLETING") and away_since is None:
            away_since = time.time()
        if state not in ("RUNNING", "COMPLETING", "PENDING", "CONFIGURING") and not style.digest():
            # A requeue may be on its way: dead twice is dead.
            time.sleep(2.0)
            if slurm.state(job) == state:
                job = style.submit()
                result.human_actions += 1
        if (now := len(style.steps())) != num_steps:
            num_steps, patience = now, time.monotonic() + PATIENCE_S
        if time.monotonic() > patience:
            raise TimeoutError(f"{style.name}: no step within {PATIENCE_S:.0f} s, job {job} is {state}")
        time.sleep(POLL_S)
    return job, absences


def _through(
    style: Style, slurm: Slurm, job: str, result: Result, struck_at: float, outcome: Outcome
) -> tuple[str, float]:
    """Wait until the fault has struck and a new step is done; returns the job and the seconds it was without nodes."""

    def is_over() -> bool:
        return _resumed(style.steps(), struck_at) is not None or bool(style.digest())

    job, absences = _until(style, slurm, job, result, is_over)
    if absences and (saved_at := style.durable_at(absences[0][0])) is not None:
        outcome.free_s = absences[0][0] - saved_at
    return job, sum(end - begin for begin, end in absences)


def _resumed(steps: list[tuple[int, float]], struck_at: float) -> tuple[int, int, float, float] | None:
    """(furthest before, steps done again, time of the last step before, time of the first new one) of the first
    interruption after ``struck_at``: a pause in which the processes were replaced, seen by a step that comes again, or
    by a long gap."""
    for index in range(1, len(steps)):
        (before, before_at), (step, at) = steps[index - 1], steps[index]
        if at < struck_at or not (step != before + 1 or at - before_at > 2.0):
            continue
        new = next(((number, when) for number, when in steps[index:] if number > before), None)
        return None if new is None else (before, before - step + 1, before_at, new[1])
    return None


def _measure(style: Style, struck_at: float, absent_s: float, outcome: Outcome) -> None:
    found = _resumed(style.steps(), struck_at)
    if found is None:
        raise TimeoutError(f"{style.name}: was done before the {outcome.fault} struck")
    _, outcome.rework, stopped_at, new_at = found
    outcome.seconds = new_at - stopped_at - absent_s


def _words(outcome: Outcome) -> str:
    back = "came back" if outcome.came_back else f"{outcome.human_actions} human actions"
    free = "" if outcome.free_s is None else f", nodes free {outcome.free_s:.1f} s after the save"
    return f"{back}, rework {outcome.rework}, {outcome.seconds:.1f} s{free}"


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """A real two-node Slurm whose preemptions have 10 s of grace; its environment."""
    path = REPOSITORY / "slurm" / "testcluster" / "cluster.py"
    spec = importlib.util.spec_from_file_location("testcluster", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["testcluster"] = module
    spec.loader.exec_module(module)
    made = module.TestCluster(tempfile.mkdtemp(prefix="rlaunch-race-", dir="/tmp"))
    try:
        made.up(module.ClusterSpec(num_nodes=2, grace_s=10, kill_wait_s=30), until_exit_of=os.getpid())
        yield {**os.environ, **made.env()}
    finally:
        made.down()


def goals(results: list[Result], size: Size) -> list[Goal]:
    """What rlaunch is to show, against what the others showed in the same run."""
    ours = next((result for result in results if result.style == "rlaunch"), None)
    if ours is None or len(ours.outcomes) < len(FAULTS):
        return [Goal(name="rlaunch: faults raced through", value=0, against=None, goal=len(FAULTS), met=False)]
    never = float("inf")
    notices, crash = ours.outcomes[:2], ours.outcomes[2]
    rework = [never if outcome.rework is None else outcome.rework for outcome in (*notices, crash)]
    freed_s = max(never if outcome.free_s is None else outcome.free_s for outcome in notices)
    found = [
        at_most("human actions", ours.human_actions, 0),
        at_most("rework after notices, steps", max(rework[:2]), 0),
        at_most("rework after the crash, steps", rework[2], size.every),
        at_most("digests that differ from the uninterrupted run", int(not ours.digest_equal), 0),
        at_most("seconds from the durable save to free nodes", freed_s, 5.0),
    ]
    for index, fault in enumerate(FAULTS):
        others = [
            outcome.seconds
            for result in results
            if result is not ours
            for outcome in result.outcomes[index : index + 1]
            if outcome.seconds is not None
        ]
        mine = ours.outcomes[index].seconds
        name = f"{fault}: seconds to the first new step, against the best peer"
        found.append(ratio(name, never if mine is None else mine, min(others, default=never), 1.0))
    return found


def table(results: list[Result]) -> str:
    """Style × fault, as Markdown."""
    lines = ["| style | fault | came back | rework | seconds | end digest |", "|---|---|---|---|---|---|"]
    for result in results:
        digest = {None: "none", True: "equal", False: "differs"}[result.digest_equal]
        for outcome in result.outcomes:
            back = "yes" if outcome.came_back else f"no ({outcome.human_actions} human)"
            seconds = "-" if outcome.seconds is None else f"{outcome.seconds:.1f}"
            lines.append(f"| {result.style} | {outcome.fault} | {back} | {outcome.rework} | {seconds} | {digest} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a shorter job")
    parser.add_argument("--styles", default="rlaunch,torchrun,submitit")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout, the rest on stderr")
    options = parser.parse_args()
    progress = partial(print, flush=True, file=sys.stderr if options.json else sys.stdout)
    size = Size(steps=450, every=50) if options.quick else Size(steps=1500, every=100)
    results: list[Result] = []
    work = Path(tempfile.mkdtemp(prefix="rlaunch-race-work-", dir="/tmp"))
    try:
        with cluster() as env:
            slurm = Slurm(env)
            for name in options.styles.split(","):
                progress(f"{name}: uninterrupted")
                whole = Style(name, work / f"{name}-whole", env, replace(size, step_s=0.0))
                unused = Result(style=name)
                _until(whole, slurm, whole.submit(), unused, partial(_is_done, whole))
                progress(f"{name}: through three faults")
                style = Style(name, work / name, env, size)
                result = Result(style=name)
                results.append(result)
                try:
                    race(style, slurm, result, say=progress)
                    result.digest_equal = style.digest() == whole.digest()
                except TimeoutError as error:
                    progress(f"  gave up: {error}")
                slurm.run("scancel", "--user=root")
        reached = goals(results, size)
        progress(table(results))
        if options.json:
            figures = {"size": asdict(size), "results": [asdict(result) for result in results]}
            print(json.dumps({"schema": 1, **figures, "goals": [asdict(goal) for goal in reached]}))
        else:
            print("\n".join(map(str, reached)))
        return 0 if all(goal.met for goal in reached) else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
