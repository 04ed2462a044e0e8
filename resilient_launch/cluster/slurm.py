"""Slurm by its commands, whichever are found on PATH: a fake that brings the same commands is no other case."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence

from resilient_launch.cluster.base import JobRow, JobView, RequeueOutcome, Reservation
from resilient_launch.cluster.slurm_text import (
    COMMENT_FORMAT,
    RUNNING_STATES,
    SACCT_FIELDS,
    SQUEUE_FORMAT,
    clean_message,
    parse_comments,
    parse_node_address,
    parse_reservations,
    parse_sacct,
    parse_show_job,
    parse_squeue,
)
from resilient_launch.core.errors import RefusedError, RlaunchError, UnreachableError, UsageError

_JOB_ID = re.compile(r"\d{1,12}(?:[_+]\d{1,12})?", re.ASCII)
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_SETTINGS = ("SLURM_", "SBATCH_", "SRUN_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_")
_KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
_SILENCE = re.compile(
    r"unable to contact slurm controller|timed out|connection refused|could not establish a configuration source"
    r"|zero bytes were transmitted|standby mode|munge encode failed|unable to resolve|connect failure",
    re.IGNORECASE,
)
_UNKNOWN_JOB = "invalid job id"
_WAITS_ALREADY = "pending execution"
# Credentials carry whole seconds, and clocks differ a little.
_AFTER_REVOCATION_S = 2
_USABLE = frozenset({"idle", "mix", "alloc", "comp", "plnd"})
_ENDS_ALREADY = "already completing or completed"


def client_environment(env: Mapping[str, str], keep: Iterable[str] = ()) -> dict[str, str]:
    """``env`` for one of Slurm's commands: without the variables that change what the command does or prints.

    Inside a job they also hold the job's own identity, which a job submitted from there must not take for its own.
    ``keep`` names variables to leave in.
    """
    kept = _KEPT | set(keep)
    return {name: value for name, value in env.items() if name in kept or not name.startswith(_SETTINGS)}


def check_answer(command: str, done: subprocess.CompletedProcess[str], what: str) -> None:
    """Raise UnreachableError, or RefusedError with ``what`` and Slurm's own words, unless ``command`` succeeded."""
    if done.returncode == 0:
        return
    words = clean_message(done.stderr) or clean_message(done.stdout) or f"exit code {done.returncode}"
    if _SILENCE.search(words):
        raise UnreachableError("Slurm does not answer", where=command, why=words, hint="scontrol ping")
    raise RefusedError(what, where=command, why=words)


def run_command(arguments: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands, found on the PATH of ``env``. Raises UnreachableError: not found, or no answer."""
    command = arguments[0]
    found = shutil.which(command, path=env.get("PATH", os.defpath))
    if found is None:
        raise UnreachableError(
            f"{command} not found on PATH",
            why="Slurm's commands are needed here",
            hint="load your site's Slurm module, run this on a login node, or use --cluster fake",
        )
    try:
        return subprocess.run(
            [found, *arguments[1:]],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"no answer within {timeout_s:g} s", where=command, hint="scontrol ping") from None
    except OSError as error:
        raise UnreachableError(f"{found} cannot be run", why=error.strerror or str(error)) from None


class SlurmCommands:
    """The Scheduler that Slurm's commands are.

    ``env`` is the environment they are found and run in, by default this process's at the time of each call;
    ``timeout_s`` bounds each of them.
    """

    def __init__(self, env: Mapping[str, str] | None = None, timeout_s: float = 30.0) -> None:
        self._env = env
        self._timeout_s = timeout_s

    def show(self, job_id: str) -> JobView | None:
        done = self._run("scontrol", "show", "job", _job_id(job_id))
        if done.returncode != 0 and _UNKNOWN_JOB in done.stderr.lower():
            return None
        check_answer("scontrol show job", done, f"job {job_id} cannot be shown")
        return parse_show_job(done.stdout, job_id)

    def queue(self, job_ids: Sequence[str]) -> dict[str, JobView]:
        if not job_ids:
            return {}
        wanted = ",".join(_job_id(job_id) for job_id in job_ids)
        done = self._run(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={wanted}", f"--format={SQUEUE_FORMAT}"
        )
        if done.returncode != 0 and _UNKNOWN_JOB in done.stderr.lower():
            return {}
        check_answer("squeue", done, "the queue cannot be shown")
        return parse_squeue(done.stdout)

    def history(self, job_id: str) -> list[JobRow]:
        arguments = ("--duplicates", "--allocations", "--noheader", "--parsable2", f"--format={SACCT_FIELDS}")
        try:
            done = self._run("sacct", *arguments, f"--jobs={_job_id(job_id)}")
        except UnreachableError:
            return []
        return parse_sacct(done.stdout) if done.returncode == 0 else []

    def requeue(self, job_id: str, *, hold: bool = False) -> RequeueOutcome:
        done = self._run("scontrol", "requeuehold" if hold else "requeue", _job_id(job_id))
        if done.returncode != 0 and _WAITS_ALREADY in done.stderr.lower():
            return RequeueOutcome.ALREADY
        check_answer("scontrol requeue", done, f"job {job_id} cannot be requeued")
        return RequeueOutcome.REQUEUED

    def release(self, job_id: str) -> None:
        done = self._run("scontrol", "release", _job_id(job_id))
        check_answer("scontrol release", done, f"job {job_id} cannot be released")

    def cancel(self, job_id: str) -> None:
        done = self._run("scancel", _job_id(job_id))
        if done.returncode != 0 and any(words in done.stderr.lower() for words in (_UNKNOWN_JOB, _ENDS_ALREADY)):
            return
        check_answer("scancel", done, f"job {job_id} cannot be cancelled")

    def start_now(self, job_id: str) -> None:
        # Started in the second of its last end it fails: the nodes take its credential for the revoked one.
        self._update(job_id, f"StartTime=now+{_AFTER_REVOCATION_S}", f"the wait of job {job_id} cannot be lifted")

    def start_at(self, job_id: str, when: float) -> None:
        # A span instead of a date: no time zone can come between.
        wait_s = max(math.ceil(when - time.time()), _AFTER_REVOCATION_S)
        self._update(job_id, f"StartTime=now+{wait_s}", f"job {job_id} cannot be made to wait")

    def exclude(self, job_id: str, nodes: Sequence[str]) -> None:
        names = ",".join(_node(name) for name in nodes)
        self._update(job_id, f"ExcNodeList={names}", f"job {job_id} cannot be kept off {names}")

    def set_comment(self, job_id: str, comment: str) -> None:
        self._update(job_id, f"Comment={comment}", f"the comment of job {job_id} cannot be set")

    def reservations(self) -> list[Reservation]:
        done = self._run("scontrol", "--oneliner", "show", "reservation")
        check_answer("scontrol show reservation", done, "the reservations cannot be shown")
        return parse_reservations(done.stdout)

    def usable_nodes(self, partition: str) -> list[str]:
        # Marks after a state say what the node is about to do; with an asterisk it does not even answer.
        return [name for name, state in self.nodes(partition).items() if state.rstrip("~#!%$@^-+") in _USABLE]

    def nodes(self, partition: str = "") -> dict[str, str]:
        """Every node of the partition (of the cluster, for ""), and sinfo's short word for its state."""
        chosen = (f"--partition={partition}",) if partition else ()
        done = self._run("sinfo", "--noheader", "--Node", "--format=%N %t", *chosen)
        check_answer("sinfo", done, "the nodes cannot be listed")
        rows = [line.split() for line in done.stdout.splitlines()]
        return {row[0]: row[1] for row in rows if len(row) == 2}

    def partition_setting(self, partition: str, name: str) -> str | None:
        """The value of one of a partition's settings, such as GraceTime; None where there is none."""
        if not _NODE_NAME.fullmatch(partition):
            return None
        done = self._run("scontrol", "show", "partition", partition)
        found = re.search(rf"\b{re.escape(name)}=(\S+)", done.stdout) if done.returncode == 0 else None
        return found[1] if found else None

    def comments(self) -> dict[str, tuple[JobView, str]]:
        """Every running job of every user, by id, and what its comment says."""
        done = self._run("squeue", "--noheader", "--array", f"--states={RUNNING_STATES}", f"--format={COMMENT_FORMAT}")
        check_answer("squeue", done, "the queue cannot be shown")
        return parse_comments(done.stdout)

    def node_address(self, node: str) -> str:
        done = self._run("scontrol", "show", "node", _node(node))
        check_answer("scontrol show node", done, f"node {node} cannot be shown")
        address = parse_node_address(done.stdout)
        if address is None:
            raise RlaunchError(f"scontrol's answer about node {node}", why="it names no address")
        return address

    def version(self) -> str:
        done = self._run("scontrol", "--version")
        check_answer("scontrol --version", done, "the version cannot be shown")
        return done.stdout.split()[-1] if done.stdout.split() else ""

    def setting(self, name: str) -> str | None:
        """The value of one of the controller's settings, such as KillWait; None where it has no such setting."""
        done = self._run("scontrol", "show", "config")
        check_answer("scontrol show config", done, "the controller's settings cannot be shown")
        for line in done.stdout.splitlines():
            key, separator, value = line.partition("=")
            if separator and key.strip() == name:
                return value.strip()
        return None

    def kill_wait_s(self) -> float | None:
        """Seconds from TERM to KILL at the end of a job; None where the controller does not say."""
        value = (self.setting("KillWait") or "").partition(" ")[0]
        return float(value) if value.isdigit() else None

    def _update(self, job_id: str, change: str, what: str) -> None:
        done = self._run("scontrol", "update", f"JobId={_job_id(job_id)}", change)
        check_answer("scontrol update", done, what)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = client_environment(os.environ if self._env is None else self._env)
        # Seconds since the epoch: a local time is ambiguous for an hour each autumn.
        return run_command(arguments, {**env, "SLURM_TIME_FORMAT": "%s"}, self._timeout_s)


def _job_id(job_id: str) -> str:
    if not _JOB_ID.fullmatch(job_id):
        raise UsageError(f"job id {job_id[:80]!r}", why="a job id is a number, or <array>_<task>")
    return job_id


def _node(name: str) -> str:
    if not _NODE_NAME.fullmatch(name):
        raise UsageError(f"node name {name[:80]!r}", why="it holds characters that a node's name cannot")
    return name
