"""What this machine, its storage and its Slurm are like, as far as a run depends on it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from resilient_launch.cluster.hostlist import expand
from resilient_launch.cluster.slurm import check_answer, client_environment, run_command
from resilient_launch.core import durable
from resilient_launch.core.errors import RlaunchError, UnreachableError
from resilient_launch.core.probe import MountReport, filesystem, probe

QUICK_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a configuration can be filled in with. ``partition`` is empty where the site's default will do."""

    cluster: Literal["slurm", "fake"]
    gpus_per_node: int
    partition: str


@dataclass(frozen=True, kw_only=True)
class MountProbe:
    """What a directory's file system did when tried. Times in seconds; ``error`` is what stopped the probe.

    ``behaviour`` is what several processes at once saw of it.
    """

    directory: Path
    kind: str
    behaviour: MountReport | None = None
    hard_links: bool = False
    fsync_s: float | None = None
    error: str = ""


def look() -> Surroundings:
    """What is here: Slurm where its controller answers, otherwise this machine alone."""
    try:
        text = slurm_answer("sinfo", "--noheader", "--format=%G")
    except RlaunchError:
        return Surroundings(cluster="fake", gpus_per_node=0, partition="")
    counts = [int(match[1]) for match in re.finditer(r"gpu:(?:[^:,()\s]+:)?(\d+)", text)]
    return Surroundings(cluster="slurm", gpus_per_node=max(counts, default=0), partition="")


def slurm_answer(*arguments: str, timeout_s: float = QUICK_TIMEOUT_S) -> str:
    """What one of Slurm's commands prints. Raises UnreachableError or RefusedError."""
    done = run_command(arguments, client_environment(os.environ), timeout_s)
    check_answer(arguments[0], done, "no answer")
    return done.stdout


def slurm_settings() -> dict[str, str]:
    """The controller's settings by name. Raises UnreachableError."""
    settings: dict[str, str] = {}
    for line in slurm_answer("scontrol", "show", "config").splitlines():
        key, separator, value = line.partition("=")
        if separator:
            settings.setdefault(key.strip(), value.strip())
    if not settings:
        raise UnreachableError("scontrol show config", why="told no settings")
    return settings


def run_python(code: str, *, timeout_s: float = 60.0) -> str | None:
    """What another Python like this one prints for ``code``; None when it fails."""
    import sys

    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout_s, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None
    return None


def can_block_signals() -> bool:
    """Whether ``env`` can start a program with signals blocked (coreutils 8.31)."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["env", "--block-signal=TERM", "true"]
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    return False


def has_program(name: str) -> bool:
    """Whether ``name`` is found on PATH."""
    return shutil.which(name) is not None


def on_nodes(hostlist: str) -> dict[str, tuple[str, ...]]:
    """For each node that ``hostlist`` names the command that runs a command there. Raises UsageError for no hostlist.

    Within an allocation its nodes are asked beside what runs there; elsewhere Slurm is, for half a minute at most.
    """
    how = ("--overlap",) if "SLURM_JOB_ID" in os.environ else ("--immediate=20", "--time=1")
    usual = ("srun", "--quiet", "--nodes=1", "--ntasks=1", *how)
    return {node: (*usual, f"--nodelist={node}") for node in expand(hostlist)}


def probe_mount(directory: Path, nodes: Mapping[str, Sequence[str]] | None = None) -> MountProbe:
    """Try, below ``directory`` or the nearest directory above that exists, what runs need of a file system.

    ``nodes`` are further nodes to ask, as from ``on_nodes``.
    """
    directory = directory.absolute()
    existing = next(parent for parent in (directory, *directory.parents) if parent.is_dir())
    kind = filesystem(existing)
    place = existing / f".rlaunch-probe-{secrets.token_hex(6)}"
    try:
        place.mkdir()
    except OSError as error:
        return MountProbe(directory=existing, kind=kind, error=(error.strerror or str(error)).lower())
    try:
        began = time.monotonic()
        durable.write_file(place / "one", b"1")
        durable.fsync_dir(place)
        fsync_s = time.monotonic() - began
        hard_links = False
        with contextlib.suppress(OSError):
            os.link(place / "one", place / "two")
            hard_links = (place / "one").stat().st_ino == (place / "two").stat().st_ino
        behaviour = probe(place, nodes=nodes)
    except OSError as error:
        return MountProbe(directory=existing, kind=kind, error=(error.strerror or str(error)).lower())
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return MountProbe(
        directory=existing,
        kind=kind,
        behaviour=behaviour,
        hard_links=hard_links,
        fsync_s=fsync_s,
    )
