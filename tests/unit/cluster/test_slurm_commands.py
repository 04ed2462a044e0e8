"""SlurmCommands against small scripts that stand on PATH: what happens around the commands, not what Slurm does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilient_launch.cluster.base import RequeueOutcome, Scheduler
from resilient_launch.cluster.slurm import SlurmCommands, client_environment
from resilient_launch.core.errors import RefusedError, UnreachableError, UsageError


def _command(directory: Path, name: str, script: str) -> dict[str, str]:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{directory}{os.pathsep}{os.environ['PATH']}"}


def test_it_is_a_scheduler() -> None:
    scheduler: Scheduler = SlurmCommands({})
    assert scheduler


def test_a_missing_command_is_named() -> None:
    slurm = SlurmCommands({"PATH": "/nonexistent"})
    with pytest.raises(UnreachableError, match="scontrol not found on PATH") as caught:
        slurm.show("1")
    assert caught.value.hint and caught.value.exit_code == 3
    assert slurm.history("1") == []


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    env = _command(tmp_path, "scontrol", f"echo $$ >{tmp_path}/pid; exec sleep 600")
    with pytest.raises(UnreachableError, match=r"within 0\.5 s"):
        SlurmCommands(env, timeout_s=0.5).show("1")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_accounting_that_hangs_or_fails_is_no_accounting(tmp_path: Path) -> None:
    slurm = SlurmCommands(_command(tmp_path, "sacct", "exec sleep 600"), timeout_s=0.3)
    assert slurm.history("1") == []
    _command(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert slurm.history("1") == []


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    env = _command(tmp_path, "scontrol", "")
    (tmp_path / "scontrol").write_bytes(b"\x7fELF nonsense")
    with pytest.raises(UnreachableError, match="cannot be run"):
        SlurmCommands(env).show("1")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", UnreachableError),
        ("scontrol: fatal: Could not establish a configuration source", UnreachableError),
        ("Socket timed out on send/recv operation", UnreachableError),
        ("Access/permission denied for job 1", RefusedError),
    ],
)
def test_silence_is_told_from_refusal(tmp_path: Path, words: str, error: type[Exception]) -> None:
    slurm = SlurmCommands(_command(tmp_path, "scontrol", f'echo "{words}" >&2; exit 1'))
    for call in (slurm.show, slurm.requeue, slurm.start_now):
        with pytest.raises(error, match=words.rpartition(": ")[2].partition(" (")[0]):
            call("1")


def test_an_unknown_job_is_no_error(tmp_path: Path) -> None:
    for name in ("scontrol", "squeue", "scancel"):
        env = _command(tmp_path, name, 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    slurm = SlurmCommands(env)
    assert slurm.show("1") is None
    assert slurm.queue(["1"]) == {}
    slurm.cancel("1")
    _command(tmp_path, "scancel", 'echo "scancel: error: Job/step already completing or completed" >&2; exit 1')
    slurm.cancel("1")
    _command(tmp_path, "scancel", 'echo "scancel: error: Access/permission denied" >&2; exit 1')
    with pytest.raises(RefusedError, match="denied"):
        slurm.cancel("1")


def test_requeueing_a_job_that_waits_is_success(tmp_path: Path) -> None:
    env = _command(tmp_path, "scontrol", 'echo "Job is pending execution for job 1" >&2; exit 1')
    assert SlurmCommands(env).requeue("1") is RequeueOutcome.ALREADY


@pytest.mark.parametrize("job_id", ["", "x", "--help", "1 2", "1;id", "1\n", "1,2", "²", "9" * 13])
def test_what_is_no_job_id_reaches_no_command(tmp_path: Path, job_id: str) -> None:
    for name in ("scontrol", "squeue", "scancel", "sacct"):
        env = _command(tmp_path, name, f"touch {tmp_path}/called")
    slurm = SlurmCommands(env)
    calls = (slurm.show, slurm.requeue, slurm.cancel, slurm.start_now, slurm.history, lambda text: slurm.queue([text]))
    for call in calls:
        with pytest.raises(UsageError, match="job id"):
            call(job_id)
    with pytest.raises(UsageError, match="node name"):
        slurm.node_address("-x")
    assert not (tmp_path / "called").exists()


def test_no_jobs_need_no_question() -> None:
    assert SlurmCommands({"PATH": "/nonexistent"}).queue([]) == {}


def test_a_command_sees_slurms_settings_of_nobody(tmp_path: Path) -> None:
    env = _command(tmp_path, "scontrol", f'env >{tmp_path}/env; echo "slurm 23.2.1"')
    env |= {
        "SLURM_CONF": "/c",
        "SQUEUE_FORMAT": "%j",
        "SLURM_JOB_ID": "5",
        "SLURM_TIME_FORMAT": "relative",
        "HOME": "/h",
    }
    assert SlurmCommands(env).version() == "23.2.1"
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert (seen["SLURM_CONF"], seen["HOME"], seen["SLURM_TIME_FORMAT"]) == ("/c", "/h", "%s")
    assert not {"SQUEUE_FORMAT", "SLURM_JOB_ID"} & seen.keys()


def test_client_environment_keeps_what_it_is_told_to() -> None:
    env = {"SBATCH_ACCOUNT": "a", "SBATCH_SIGNAL": "USR2", "SLURM_RESTART_COUNT": "3", "SLURM_CONF": "/c", "A": "b"}
    assert client_environment(env) == {"SLURM_CONF": "/c", "A": "b"}
    assert client_environment(env, ["SBATCH_ACCOUNT"]) == {"SLURM_CONF": "/c", "A": "b", "SBATCH_ACCOUNT": "a"}
