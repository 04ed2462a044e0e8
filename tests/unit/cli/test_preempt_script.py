"""The sample preemption script for sites, with a squeue that answers from a file and a scancel that takes notes."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from resilient_launch.cluster.slurm_text import RUNNING_STATES

SCRIPT = Path(__file__).parents[3] / "slurm" / "preempt-least-loss.sh"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, body in (
        ("squeue", f'echo "$@" >{tmp_path}/asked; cat {tmp_path}/queue'),
        ("scancel", f'echo "$@" >>{tmp_path}/cancelled'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    now = int(time.time())
    lines = [
        f"1|2|rlaunch1 saved={now - 600} step=9 gpus=16",
        f"2|2|rlaunch1 saved={now - 5} step=9 gpus=16",
        f"3|4|rlaunch1 saved={now - 60} step=9 gpus=32 $(touch {tmp_path}/evil)",
        "4|8|(null)",
        "5|8|rlaunch1 saved=1;reboot step=1 gpus=1",
    ]
    (tmp_path / "queue").write_text("\n".join(lines) + "\n")
    return tmp_path


def _run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{site}:{os.environ['PATH']}"}
    return subprocess.run([SCRIPT, *arguments], env=env, capture_output=True, text=True, timeout=30, check=False)


def test_the_cheapest_jobs_are_named_and_left_alone(site: Path) -> None:
    done = _run(site, "3")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["2:", "3:"]
    assert not (site / "cancelled").exists()
    assert f"--states={RUNNING_STATES.lower()} " in (site / "asked").read_text()
    assert not (site / "evil").exists()


def test_they_are_asked_by_a_signal(site: Path) -> None:
    assert _run(site, "--do", "1", "low").returncode == 0
    assert (site / "cancelled").read_text() == "--signal=USR1 2\n"


def test_too_many_nodes_and_no_number(site: Path) -> None:
    assert "only 8 nodes can be had" in _run(site, "9").stderr
    assert _run(site, "x").returncode == 2
    assert _run(site).returncode == 2
