"""Every command block in the documentation, executed in order as a reader would."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from integration_bench import MAIN, REPOSITORY

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.config import loads

README = REPOSITORY / "README.md"
SITES = REPOSITORY / "slurm" / "README.md"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, language: str) -> list[str]:
    return [text for found, text in _FENCE.findall(path.read_text()) if found == language]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory with an ``rlaunch`` on PATH and no runs."""
    program = tmp_path / "bin" / "rlaunch"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{MAIN}" "$@"\n')
    program.chmod(0o755)
    yield tmp_path
    FakeCluster(tmp_path / "runs" / ".fake").down()


def execute(text: str, place: Path, *extra_path: str) -> str:
    path = os.pathsep.join([str(place / "bin"), *extra_path, os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-eu", "-c", text],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "RLAUNCH_ROOT": str(place / "runs")},
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_readme_from_nothing_to_a_cluster(place: Path) -> None:
    first, interrupted, rehearsed, real = blocks(README, "sh")
    assert "goodput" in execute(first, place)
    assert (place / "first.html").read_text().startswith("<!doctype html>")
    assert "preempted" in execute(interrupted, place)
    # The administrators' page asks Slurm; here the fake one answers, which goes when nobody has asked it for a while.
    (sites,) = blocks(SITES, "sh")
    shims = str(place / "runs" / ".fake" / "bin")
    assert '"partition low"' in execute(f"{sites.strip()} || true", place, shims)
    assert "first: identical" in execute(rehearsed, place)
    assert "#SBATCH" in execute(real, place)


def test_the_transcript_on_a_fake_slurm(place: Path) -> None:
    """Every command in turn in one shell; what it prints is what stands below it, … for anything."""
    (text,) = blocks(SITES, "console")
    commands: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif line.startswith("> ") and not commands[-1][1]:
            commands[-1] = (f"{commands[-1][0]}\n{line[2:]}", [])
        else:
            commands[-1][1].append(line)
    mark = "==== the next command ===="
    script = "\n".join(f"{command}\necho '{mark}'" for command, _ in commands)
    printed = execute(f"exec 2>&1\n{script}", place).split(f"{mark}\n")
    for (command, expected), found in zip(commands, printed, strict=False):
        pattern = "".join(re.escape(f"{line}\n").replace("…", ".*") for line in expected)
        assert re.fullmatch(pattern, found), f"{command}\n{found}"


def test_the_readmes_configuration_is_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass\n")
    (text,) = blocks(README, "yaml")
    assert loads(text, base=tmp_path).name == "llm-7b"


def test_the_readmes_python_is_python() -> None:
    for text in blocks(README, "python"):
        compile(text, str(README), "exec")


def test_every_fence_is_of_a_kind_that_is_tried() -> None:
    for path in (README, SITES, REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "slurm" / "testcluster" / "README.md"):
        kinds = {found for found, _ in _FENCE.findall(path.read_text())}
        assert kinds <= {"sh", "yaml", "python", "console"}, path


def test_the_make_targets_that_the_documentation_names_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for path in (README, REPOSITORY / "CONTRIBUTING.md"):
        assert set(re.findall(r"\bmake ([a-z-]+)\b(?=[` ]*(?:#|`|$))", path.read_text(), re.MULTILINE)) <= targets


def test_the_readmes_table_names_commands_that_exist(place: Path) -> None:
    for words in re.findall(r"`rlaunch ([a-z]+(?: [a-z]+)?)", README.read_text()):
        first, *rest = words.split()
        execute(f"rlaunch {first} --help >/dev/null", place)
        if first in ("ckpt", "config", "plan", "simulate", "stagger") and rest:
            execute(f"rlaunch {words} --help >/dev/null", place)
