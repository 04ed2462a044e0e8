"""The comment with what a run would lose, against a scontrol that answers from a file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from waiting import wait_for

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.job.publish import Publisher

SILENT, REFUSES = "Unable to contact slurm controller (connect failure)", "Access/permission denied"


def _offer(publisher: Publisher, step: int) -> None:
    publisher.offer(step=step, saved_at=100.0)
    wait_for(lambda: all(thread.name != "rlaunch-publish" for thread in threading.enumerate()))


def _site(directory: Path) -> SlurmCommands:
    scontrol = directory / "scontrol"
    lines = ["#!/bin/sh", f'echo "$@" >>{directory}/asked', f"! [ -s {directory}/says ] || ! cat {directory}/says >&2"]
    scontrol.write_text("\n".join(lines) + "\n")
    scontrol.chmod(0o755)
    return SlurmCommands({"PATH": f"{directory}:{os.environ['PATH']}"})


def _asked(directory: Path) -> list[str]:
    return (directory / "asked").read_text().splitlines()


def test_each_step_once_and_not_too_often(tmp_path: Path) -> None:
    publisher = Publisher(_site(tmp_path), "7", num_gpus=16, every_s=0.0)
    for step in (1, 1, 2):
        _offer(publisher, step)
    words = [f"update JobId=7 Comment=rlaunch1 saved=100 step={step} gpus=16" for step in (1, 2)]
    assert _asked(tmp_path) == words
    seldom = Publisher(_site(tmp_path), "7", num_gpus=16)
    for step in (3, 4):
        _offer(seldom, step)
    assert len(_asked(tmp_path)) == 3


def test_a_silent_controller_is_asked_again_and_one_that_refuses_is_not(tmp_path: Path) -> None:
    publisher = Publisher(_site(tmp_path), "7", num_gpus=16, every_s=0.0)
    for step, says, asked in ((1, SILENT, 1), (2, "", 2), (3, REFUSES, 3), (4, "", 3)):
        (tmp_path / "says").write_text(says)
        _offer(publisher, step)
        assert len(_asked(tmp_path)) == asked
