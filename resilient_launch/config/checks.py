"""What no single value shows: values that contradict each other, the fake cluster, or the disk."""

from __future__ import annotations

import math
import os
from pathlib import Path

from resilient_launch.config.cursor import Report
from resilient_launch.config.issues import closest
from resilient_launch.config.schema import Drain, FailNode, KillWorker, LaunchConfig, StopWorker
from resilient_launch.core.units import MINUTE_S, format_duration, format_slurm_time, slurm_minutes

# sbatch(1): a --signal may come up to 60 seconds earlier than asked for.
SIGNAL_EARLY_S = 60


def check_values(config: LaunchConfig, report: Report) -> None:
    """Report every contradiction inside ``config`` among keys that are good by themselves."""
    _check_program(config, report)
    _check_signal_lead(config, report)
    _check_hang(config, report)
    _check_global_batch(config, report)
    if config.cluster == "fake":
        _check_fits(config, report)
        _check_partition(config, report)
    _check_faults(config, report)


def check_files(config: LaunchConfig, report: Report) -> None:
    """Report every file or directory that ``config`` names and that this machine cannot give."""
    if not report.is_good("workdir"):
        return
    if not config.workdir.is_dir():
        problem = "is not a directory" if config.workdir.exists() else "does not exist"
        report.add(("workdir",), f"directory {str(config.workdir)!r}", why=problem, hint=_nearest(config.workdir))
        return
    if config.script is not None and report.is_good("script"):
        _check_script(config, config.workdir / config.script, report)
    if "/" in config.python and report.is_good("python") and not os.access(config.python, os.X_OK):
        why = "cannot be executed" if Path(config.python).exists() else "does not exist"
        report.add(("python",), f"interpreter {config.python!r}", why=why, hint="python: python3")


def notes(config: LaunchConfig) -> tuple[str, ...]:
    """What is accepted but will not be exactly as written, each a line for the user."""
    if config.time_s is None or math.isinf(config.time_s) or config.time_s % MINUTE_S == 0:
        return ()
    asked, given = format_duration(config.time_s), format_slurm_time(config.time_s)
    return (f"time: Slurm counts whole minutes, so {asked} becomes {given}",)


def _check_program(config: LaunchConfig, report: Report) -> None:
    keys = ("script", "module", "command")
    given = [key for key in keys if key in report.marks]
    if not given and report.is_good(*keys):
        what = "no script, module or command"
        report.add(("script",), what, why="one of them says what to run", hint="script: train.py")
    for key in given[1:]:
        why = "only one of script, module and command can be run"
        report.add((key,), f"{key} beside {given[0]}", why=why, hint=f"leave out {key} or {given[0]}")


def _check_signal_lead(config: LaunchConfig, report: Report) -> None:
    if config.time_s is None or not report.is_good("time", "signal_lead"):
        return
    limit_s = math.inf if math.isinf(config.time_s) else slurm_minutes(config.time_s) * MINUTE_S
    lead_s = config.signal_lead_s
    what = f"signal lead {format_duration(lead_s)}"
    needed = format_duration((slurm_minutes(lead_s + SIGNAL_EARLY_S + 1)) * MINUTE_S)
    shorter_s = limit_s - SIGNAL_EARLY_S - 1
    shorter = f", or signal_lead: {format_duration(min(30, shorter_s))}" if shorter_s >= 1 else ""
    hint = f"time: {needed}{shorter}"
    if lead_s >= limit_s:
        why = f"is ≥ the time limit of {format_duration(limit_s)} and would fire at start-up"
        report.add(("signal_lead", "time"), what, why=why, hint=hint)
    elif lead_s + SIGNAL_EARLY_S >= limit_s:
        limit = format_duration(limit_s)
        why = f"Slurm may signal {SIGNAL_EARLY_S}s early, which is at start-up where the time limit is {limit}"
        report.add(("signal_lead", "time"), what, why=why, hint=hint)


def _check_global_batch(config: LaunchConfig, report: Report) -> None:
    keys = ("global_batch", "nodes", "workers_per_node")
    if config.global_batch is None or not report.is_good(*keys):
        return
    for num_nodes in range(config.nodes.min, config.nodes.max + 1):
        num_ranks = num_nodes * config.workers_per_node
        if config.global_batch % num_ranks:
            why = f"{num_ranks} ranks of {num_nodes} nodes cannot have equal shares of it"
            fitting = math.lcm(*range(config.nodes.min, config.nodes.max + 1)) * config.workers_per_node
            hint = f"a multiple of {fitting}" if fitting < 10**9 else "fewer numbers of nodes"
            report.add(("global_batch",), f"global batch {config.global_batch}", why=why, hint=hint)
            return


def _check_hang(config: LaunchConfig, report: Report) -> None:
    floor_s, ceiling_s = config.hang.floor_s, config.hang.ceiling_s
    if floor_s > ceiling_s and report.is_good("hang.floor", "hang.ceiling"):
        why = f"is more than the ceiling of {format_duration(ceiling_s)}"
        hint = f"ceiling: {format_duration(floor_s)}"
        report.add(("hang.floor", "hang.ceiling"), f"hang floor {format_duration(floor_s)}", why=why, hint=hint)


def _check_fits(config: LaunchConfig, report: Report) -> None:
    fake = config.fake
    asked = (
        ("nodes", ("nodes",), config.nodes.min, fake.num_nodes, "nodes"),
        ("cpus", ("workers_per_node", "cpus_per_worker"), config.cpus_per_node, fake.cpus, "CPUs on each node"),
        ("gpus", ("gpus_per_node",), config.gpus_per_node, fake.gpus, "GPUs on each node"),
        ("memory", ("memory",), config.memory_mb or 0, fake.memory_mb, "MiB on each node"),
    )
    for fake_key, keys, wanted, has, unit in asked:
        if wanted > has and report.is_good(*keys, f"fake.{fake_key}"):
            size = f"{wanted}M" if fake_key == "memory" else f"{wanted}"
            hint = f"fake: {{{fake_key}: {size}}}, or ask for less"
            report.add(keys, f"the run asks for {wanted} {unit}", why=f"the fake cluster has {has}", hint=hint)


def _check_partition(config: LaunchConfig, report: Report) -> None:
    if config.partition is None or not report.is_good("partition", "fake.partitions"):
        return
    names = [spec.name for spec in config.fake.partitions]
    for name in config.partition.split(","):
        if name not in names:
            why = f"the fake cluster has {', '.join(names)}"
            report.add(("partition",), f"partition {name!r}", why=why, hint=closest(name, names) or names[0])


def _check_faults(config: LaunchConfig, report: Report) -> None:
    if not config.faults or not report.is_good("faults"):
        return
    if config.cluster != "fake":
        if report.is_good("cluster"):
            why = f"only the fake cluster can be told to fail, and cluster is {config.cluster}"
            report.add(("faults",), "out of place", why=why, hint="cluster: fake, or faults: []")
        return
    if not report.is_good("nodes", "workers_per_node"):
        return
    num_nodes, num_ranks = config.nodes.max, config.nodes.max * config.workers_per_node
    for index, fault in enumerate(config.faults):
        if isinstance(fault, FailNode | Drain) and fault.node >= num_nodes:
            why = f"the run has {num_nodes} nodes at most, counted from 0"
            report.add((f"faults.{index}.node",), f"node {fault.node}", why=why, hint=f"node: {num_nodes - 1}")
        if isinstance(fault, KillWorker | StopWorker) and fault.rank >= num_ranks:
            why = f"the run has {num_ranks} workers at most, counted from 0"
            report.add((f"faults.{index}.rank",), f"rank {fault.rank}", why=why, hint=f"rank: {num_ranks - 1}")


def _check_script(config: LaunchConfig, path: Path, report: Report) -> None:
    what = f"script {str(path)!r}"
    if config.code.snapshot and not Path(os.path.normpath(path)).is_relative_to(config.workdir):
        why = "lies outside workdir, so the copy of workdir that the run executes would not hold it"
        report.add(("script",), what, why=why, hint=f"workdir: {path.parent}, or code: {{snapshot: false}}")
        return
    try:
        if path.is_dir():
            report.add(("script",), what, why="is a directory", hint=_inside(path))
        elif not path.is_file() and path.exists():
            report.add(("script",), what, why="is not a regular file", hint="script: train.py")
        else:
            with path.open("rb") as script:
                if not script.read(1):
                    report.add(("script",), what, why="is empty", hint=_nearest(path))
    except FileNotFoundError:
        report.add(("script",), what, why="does not exist", hint=_nearest(path))
    except OSError as error:
        report.add(("script",), what, why=(error.strerror or str(error)).lower(), hint=f"ls -l {path.name}")


def nearest_files(path: Path) -> list[str]:
    """Names beside ``path`` that it may have been meant to be, the likeliest first."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.name != path.name)
    except OSError:
        return []
    near = closest(path.name, names)
    alike = [name for name in names if Path(name).suffix == path.suffix and not name.startswith((".", "__"))]
    return list(dict.fromkeys(([near] if near else []) + alike))[:3]


def _nearest(path: Path) -> str:
    found = nearest_files(path)
    return " or ".join(found) if found else f"a path that exists below {_existing(path)}"


def _existing(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.is_dir())


def _inside(path: Path) -> str:
    scripts = sorted(entry.name for entry in path.glob("*.py"))[:3]
    return " or ".join(f"{path.name}/{name}" for name in scripts) or "the path of a Python file"
