"""Whether a run will fare well here: each finding with what follows from it and what to do about it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resilient_launch.core.errors import RlaunchError
from resilient_launch.report import surroundings

SLOW_FSYNC_S = 0.5
SLOW_LISTING_S = 5.0
CLOCK_LIMIT_S = 5.0
COPIES = frozenset(
    f"fuse.{name}"
    for name in ("s3fs", "goofys", "mountpoint-s3", "gcsfuse", "blobfuse", "blobfuse2", "rclone", "geesefs")
)
"""Mounts of object stores, where a rename of a directory is a copy of every file, if it is at all."""
NOT_SHARED = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_TORCH = """
import json, torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
print(json.dumps([torch.__version__, torch.version.cuda, nccl, torch.cuda.device_count()]))
"""
Verdict = Literal["good", "bad", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at. ``consequence`` and ``fix`` are empty where all is well."""

    what: str
    found: str
    verdict: Verdict
    consequence: str = ""
    fix: str = ""


def examine(root: Path, *, with_cluster: bool, from_nodes: str = "") -> list[Finding]:
    """Look at this machine and at the file system of ``root``; ``with_cluster`` also asks Slurm's controller.

    ``from_nodes`` is a hostlist of nodes that are to look at the file system too. Raises UsageError when it is none.
    """
    nodes = surroundings.on_nodes(from_nodes) if from_nodes else {}
    return [*_machine(), *_storage(root, nodes), *(_cluster() if with_cluster else _commands())]


def _machine() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield _judge("Python", version, sys.version_info >= (3, 11), "rlaunch needs 3.11", "a newer Python")
    answer = surroundings.run_python(_TORCH)
    if answer is None:
        yield Finding(
            what="torch",
            found="cannot be imported",
            verdict="bad",
            consequence="no worker will start",
            fix="pip install torch",
        )
    else:
        torch, cuda, nccl, count = json.loads(answer)
        yield Finding(what="torch", found=torch, verdict="good")
        devices = f"CUDA {cuda}, NCCL {nccl}, {count} GPUs here" if count else "no GPU here"
        yield Finding(
            what="GPUs",
            found=devices,
            verdict="good" if count else "unknown",
            consequence="" if count else "compute nodes may have some; here training runs on CPUs",
        )
    yield _judge(
        "env --block-signal",
        "there" if surroundings.can_block_signals() else "not there",
        surroundings.can_block_signals(),
        "a Python stub blocks signals instead: the first 50 ms of a task are unprotected",
        "coreutils 8.31 or later on compute nodes",
    )
    yield _judge(
        "git",
        "there" if surroundings.has_program("git") else "not there",
        surroundings.has_program("git"),
        "the code version is a hash of the files alone",
        "install git",
    )


def _storage(root: Path, nodes: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    probe = surroundings.probe_mount(root, nodes)
    what = f"storage {probe.directory}"
    seen = probe.behaviour
    if seen is None:
        yield Finding(
            what=what,
            found=probe.error,
            verdict="bad",
            consequence="no run can live here",
            fix="--root DIR or RLAUNCH_ROOT with a directory that you can write to",
        )
        return
    yield _judge(
        what,
        probe.kind or "of unknown kind",
        probe.kind not in NOT_SHARED,
        "other nodes do not see it, and it does not survive a reboot",
        "--root DIR or RLAUNCH_ROOT on shared storage",
    )
    yield _judge(
        "exclusive create, rename",
        "as they should be" if seen.exclusive_create_is_honest and seen.rename_is_atomic else "broken",
        _whole(seen.exclusive_create_is_honest, seen.rename_is_atomic),
        "two agents may claim one attempt, and what a reader finds may be torn",
        "another file system",
    )
    yield _judge(
        "rename of a directory",
        "in one step" if seen.renames_directories and probe.kind not in COPIES else "not to be had in one step",
        seen.renames_directories and probe.kind not in COPIES,
        "a checkpoint can't appear by a rename",
        "checkpoint: {commit_by: manifest}",
    )
    yield _judge(
        "flock between processes",
        "excludes" if seen.flock_excludes else "excludes nobody",
        seen.flock_excludes,
        f"runs that share storage take turns by a slower lock ({seen.lock})",
        "a mount option such as flock (Lustre) or local_lock=none (NFS)",
    )
    if nodes:
        yield _judge(
            f"flock between {len(nodes) + 1} nodes",
            {True: "excludes", False: "excludes nobody", None: f"no answer from {', '.join(seen.silent_nodes)}"}[
                seen.flock_excludes_nodes
            ],
            seen.flock_excludes_nodes,
            f"runs that share storage take turns by a slower lock ({seen.lock})"
            if seen.flock_excludes_nodes is False
            else "whether nodes keep each other out is not known there",
            "a mount option such as flock (Lustre) or local_lock=none (NFS)"
            if seen.flock_excludes_nodes is False
            else "nodes that are up and idle, or rlaunch doctor within an allocation",
        )
    yield _judge(
        "a new file in another's listing",
        "not found out" if seen.listing_delay_s is None else f"after {seen.listing_delay_s:.2g} s",
        None if seen.listing_delay_s is None else seen.listing_delay_s < SLOW_LISTING_S,
        "turns at shared storage and control requests come late",
        "a shorter attribute cache (acdirmax)",
    )
    yield _judge(
        "the file server's clock",
        "not found out" if seen.clock_offset_s is None else f"{seen.clock_offset_s:+.2g} s from this machine's",
        None if seen.clock_offset_s is None else abs(seen.clock_offset_s) < CLOCK_LIMIT_S,
        "ages of checkpoints are off by as much; nothing of rlaunch's own rests on it",
        "the site's time service",
    )
    yield _judge(
        "hard links",
        "there" if probe.hard_links else "not there",
        probe.hard_links,
        "claims fall back on O_EXCL: a reader may meet a claim before its content, and waits",
        "nothing: it works",
    )
    fsync_s = probe.fsync_s or 0.0
    yield _judge(
        "fsync of a file and a name",
        f"{fsync_s * 1000:.1f} ms",
        fsync_s < SLOW_FSYNC_S,
        "every checkpoint waits for several of them",
        "a faster file system for RLAUNCH_ROOT",
    )


def _commands() -> Iterator[Finding]:
    missing = [name for name in ("sbatch", "squeue", "scontrol", "scancel") if not surroundings.has_program(name)]
    yield Finding(
        what="Slurm's commands",
        found=f"not on PATH: {', '.join(missing)}" if missing else "on PATH",
        verdict="unknown" if missing else "good",
        consequence="only cluster: fake works here" if missing else "",
        fix="load your site's Slurm module, or use a login node" if missing else "rlaunch doctor --cluster asks Slurm",
    )


def _cluster() -> Iterator[Finding]:
    try:
        version = surroundings.slurm_answer("scontrol", "--version").split()[-1]
        settings = surroundings.slurm_settings()
    except (RlaunchError, IndexError) as error:
        why = error.what + (f": {error.why}" if error.why else "") if isinstance(error, RlaunchError) else "no version"
        yield Finding(
            what="Slurm",
            found=why,
            verdict="bad",
            consequence="nothing can be submitted from here",
            fix="scontrol ping; or load your site's Slurm module",
        )
        return
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    yield _judge("Slurm", version, number >= (20, 2), "never tried with one so old", "22.05 or later")
    for name, judge in _SETTINGS.items():
        value = settings.get(name)
        if value is None:
            yield Finding(what=name, found="not told", verdict="unknown")
        else:
            yield judge(name, value, settings)
    yield from _partitions()
    yield from _reservations()


def _partitions() -> Iterator[Finding]:
    """GraceTime and PreemptMode as the partitions have them."""
    try:
        text = surroundings.slurm_answer("scontrol", "show", "partition", "--oneliner")
    except RlaunchError as error:
        yield Finding(what="partitions", found=error.what, verdict="unknown")
        return
    for line in text.splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        name, mode, grace = (
            words.get("PartitionName", "?"),
            words.get("PreemptMode", "OFF"),
            words.get("GraceTime", "0"),
        )
        if mode == "OFF":
            continue
        yield _judge(
            f"partition {name}",
            f"PreemptMode={mode} GraceTime={grace}",
            mode == "REQUEUE" and grace not in ("0", "00:00:00"),
            "a preempted run has no time for a save" if mode == "REQUEUE" else f"a preempted run meets {mode}",
            "ask for PreemptMode=REQUEUE and a GraceTime longer than a save; save more often until then",
        )


def _reservations() -> Iterator[Finding]:
    try:
        text = surroundings.slurm_answer("scontrol", "show", "reservation", "--oneliner")
    except RlaunchError as error:
        yield Finding(what="reservations", found=error.what, verdict="unknown")
        return
    count = text.count("ReservationName=")
    yield Finding(
        what="reservations",
        found=f"{count} ahead" if count else "none ahead",
        verdict="good",
        consequence="a job whose limit reaches into maintenance waits for its end" if "MAINT" in text else "",
        fix="time: shorter than what is left until then" if "MAINT" in text else "",
    )


def _whole(*answers: bool | None) -> bool | None:
    """Whether all is well; None where something could not be found out and nothing is wrong."""
    return False if False in answers else None if None in answers else True


def _judge(what: str, found: str, good: bool | None, consequence: str, fix: str) -> Finding:
    if good is None:
        return Finding(what=what, found=found, verdict="unknown", consequence=consequence, fix=fix)
    if good:
        return Finding(what=what, found=found, verdict="good")
    return Finding(what=what, found=found, verdict="bad", consequence=consequence, fix=fix)


def _seconds(value: str) -> int:
    match = re.match(r"\d+", value)
    return int(match[0]) if match else 0


_Judge = Callable[[str, str, Mapping[str, str]], Finding]


def _when(test: Callable[[str], bool], consequence: str, fix: str) -> _Judge:
    return lambda name, value, _: _judge(name, value, test(value), consequence, fix)


def _info(consequence: str = "") -> _Judge:
    return lambda name, value, _: Finding(what=name, found=value, verdict="good", consequence=consequence)


_SETTINGS: dict[str, _Judge] = {
    "PreemptMode": _when(
        lambda value: "REQUEUE" in value.upper() or value.upper() in ("OFF", "GANG"),
        "a preempted run is not put back by Slurm; rlaunch requeues it if it gets a notice",
        "PreemptMode=REQUEUE",
    ),
    "PreemptExemptTime": _info(),
    "JobRequeue": _when(
        lambda value: value.startswith("1"),
        "jobs are not requeued unless they ask: rlaunch asks with --requeue",
        "nothing, unless the site forbids it",
    ),
    "MaxBatchRequeue": _info(),
    "KillWait": _when(
        lambda value: _seconds(value) >= 15,
        "a cancelled or timed-out run has little time between TERM and KILL",
        "signal_lead: longer than a save; or KillWait=30",
    ),
    "PreemptParameters": _info(),
    "SlurmctldParameters": _info(),
    "ProctrackType": _when(
        lambda value: value != "proctrack/pgid",
        "processes in sessions of their own outlive the job",
        "ProctrackType=proctrack/cgroup",
    ),
    "AccountingStorageType": _when(
        lambda value: not value.endswith("none"),
        "rlaunch report counts allocations by the run's own events",
        "AccountingStorageType=accounting_storage/slurmdbd",
    ),
}
