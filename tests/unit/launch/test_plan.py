"""A plan is the submission: its script to the letter, from one frozen configuration."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resilient_launch.config import loads
from resilient_launch.core.paths import RunPaths
from resilient_launch.launch import make_plan
from resilient_launch.launch import plan as plans

FULL = """
name: full
workdir: /
command: [/usr/bin/true]
nodes: 2-4
workers_per_node: 2
gpus_per_node: 2
cpus_per_worker: 3
memory: 4G
time: 90m30s
signal_lead: 2m
partition: low
account: physics
qos: normal
python: /opt/python/bin/python3
setup: ["module load cuda", "export X='a b'"]
sbatch: {constraint: "a100&ib", exclusive: true, comment: "it's $(touch pwned)"}
"""
SMALL = """
name: small
workdir: /
command: [/usr/bin/true]
python: /opt/python/bin/python3
cluster: fake
"""


@pytest.mark.parametrize(("name", "text"), [("full", FULL), ("small", SMALL)])
def test_the_script_to_the_letter(tmp_path: Path, name: str, text: str, golden: Callable[[str, str], str]) -> None:
    plan = make_plan(loads(text, base=Path("/"), frozen=True), tmp_path)
    script = plan.script.replace(str(tmp_path), "/ROOT")
    assert script == golden(f"cli/script_{name}.sh", script)


def test_a_plan_touches_nothing(tmp_path: Path) -> None:
    plan = make_plan(loads(FULL, base=Path("/"), frozen=True), tmp_path / "new")
    assert list(tmp_path.iterdir()) == [] and plan.paths == RunPaths(tmp_path / "new" / "full")


def test_the_batch_shell_takes_the_script_as_it_is(tmp_path: Path) -> None:
    """Whatever a path holds, bash parses the script and nothing in it runs but what was meant."""
    root = tmp_path / "ru ns 'q\" $(touch pwned) `touch pwned`"
    plan = make_plan(loads(SMALL, base=Path("/"), frozen=True), root)
    done = subprocess.run(["bash", "-n"], input=plan.script, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_starts_with_the_notice_signals_blocked() -> None:
    words = plans.shielded(sys.executable)
    assert words.startswith("env --block-signal=TERM --block-signal=USR1 --block-signal=USR2 ")
    assert _blocked(words) == "['SIGTERM', 'SIGUSR1', 'SIGUSR2']"


def test_where_env_cannot_block_signals_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """coreutils before 8.31: the stub blocks them and becomes the real Python."""
    old = tmp_path / "env"
    old.write_text('#!/bin/sh\necho "env: unrecognized option" >&2\nexit 125\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = plans.shielded(sys.executable)
    assert "--block-signal" not in words
    assert _blocked(words) == "['SIGTERM', 'SIGUSR1', 'SIGUSR2']"


def _blocked(words: str) -> str:
    code = "import signal; print(sorted(s.name for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    done = subprocess.run(
        ["sh", "-c", f'{words} -c "$0"', code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_the_watcher_requeues_on_request_and_only_then(tmp_path: Path) -> None:
    """The lines that go into the batch shell, with a scontrol that says what it was asked, and has the asker told to
    end, as Slurm does with a job that it requeues."""
    paths = RunPaths(tmp_path / "r 'u\"n")
    paths.control.mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nkill -TERM $PPID\n')
    scontrol.chmod(0o755)
    script = "\n".join([*plans.watcher_lines(paths), f"read line; while [ -e {tmp_path}/wait ]; do sleep 0.05; done"])
    (tmp_path / "wait").touch()
    env = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}
    (paths.control / "requeue-12-1").touch()
    (paths.control / "requeue-1-0").touch()
    with subprocess.Popen(["bash", "-c", script], env=env, stdin=subprocess.PIPE, text=True) as shell:
        assert shell.stdin is not None
        request = paths.requeue_request("12", 0)
        request.touch()
        deadline = time.monotonic() + 60
        while request.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        (tmp_path / "wait").unlink()
        shell.communicate("\n", timeout=30)
    assert (tmp_path / "asked").read_text() == "requeue 12\n"
    assert sorted(path.name for path in paths.control.iterdir()) == ["requeue-1-0", "requeue-12-1"]
