"""A job as one frozen value, its sbatch script, and its submission. Nothing else touches submitit.

``script_text`` and ``submit`` build the same submitit executor, so what a dry run shows is what sbatch gets.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient_launch.cluster.slurm import client_environment
from resilient_launch.core.errors import UsageError

if TYPE_CHECKING:
    from resilient_launch.cluster.submitit_executor import RequestExecutor

_OPTION = re.compile(r"[a-z][a-z0-9-]*")
# fmt: off
_SET_HERE = frozenset({
    "account", "cpus-per-task", "error", "gpus-per-node", "job-name", "mem", "nodes", "ntasks-per-node", "open-mode",
    "output", "partition", "qos", "requeue", "signal", "time",
})
# fmt: on
_REFUSED = {
    "array": "a run is one job",
    "input": "a job that is requeued cannot read its input again",
    "no-requeue": "a run has to come back after a preemption",
    "parsable": "it changes what sbatch answers",
    "quiet": "it changes what sbatch answers",
    "test-only": "nothing would be submitted",
    "wait": "the submission would last as long as the job",
    "wrap": "the script is made here",
}
_MAX_LEAD_S = 65536
_DEFAULTS_OF_THE_USER = ("ACCOUNT", "PARTITION", "QOS", "RESERVATION", "CONSTRAINT")
"""SBATCH_ variables that fill in what a request leaves open; all others would override the script."""


@dataclass(frozen=True, kw_only=True)
class SbatchRequest:
    """What one job asks of Slurm, and the function that each of its tasks calls.

    ``folder`` is submitit's: pickle, script and log, on storage that every node shares. ``nodes`` is a number or a
    range such as "2-4"; ``mem`` is per node, as sbatch takes it ("4096M"); ``time_s`` is rounded up to Slurm's minutes,
    infinity is no limit and None the site's default.
    ``signal`` reaches the job's steps ``signal_lead_s`` seconds before the time limit. ``extra`` are further sbatch
    options by their long names without dashes; True is a bare flag, False leaves the option out. ``setup`` and
    ``python`` are the only texts that a shell reads: lines before srun, and the words that start Python.
    """

    job_name: str
    folder: Path
    function: Callable[..., object]
    args: tuple[object, ...] = ()
    nodes: int | str = 1
    ntasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    mem: str | None = None
    time_s: float | None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    signal: str = "USR1"
    signal_lead_s: int
    extra: Mapping[str, str | int | bool] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    python: str


def script_text(request: SbatchRequest) -> str:
    """The sbatch script that ``submit`` would submit. Needs no Slurm and touches nothing. Raises UsageError."""
    return _executor(request, {}).script_text()


def submit(request: SbatchRequest, env: Mapping[str, str] | None = None) -> str:
    """Submit the job with the sbatch on the PATH of ``env`` (by default this process's) and return its id.

    The job gets ``env`` too, without what an enclosing job's Slurm left in it. Raises UsageError for a value that
    cannot be passed on, RefusedError with sbatch's own words, UnreachableError; then nothing is left behind.
    """
    executor = _executor(request, os.environ if env is None else env)
    return executor.submit(request.function, *request.args).job_id


def check_request(request: SbatchRequest) -> None:
    """Raise UsageError, naming the option, for a value that would not reach sbatch as it stands."""
    options: dict[str, object] = {
        "job-name": request.job_name,
        "nodes": request.nodes,
        "mem": request.mem,
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        "signal": request.signal,
    }
    for option, choice in request.extra.items():
        _check_option(option)
        options[option] = choice
    for option, value in options.items():
        if value is not None:
            _check_text(option, str(value))
            if "\\" in str(value):
                raise UsageError(
                    f"{str(value)[:80]!r}", where=option, why="sbatch loses a backslash, even a quoted one"
                )
    folder = str(request.folder.absolute())
    shell_words = {"folder": folder, "python": request.python}
    shell_words |= {f"srun_args[{index}]": value for index, value in enumerate(request.srun_args)}
    shell_words |= {f"setup[{index}]": line.replace("\t", " ") or "#" for index, line in enumerate(request.setup)}
    for name, text in shell_words.items():
        _check_text(name, text)
    for character in "%\\":
        if character in folder:
            raise UsageError(
                f"{character!r} in the path {folder!r}",
                where="folder",
                why="Slurm gives it a meaning of its own in the names of log files",
                hint=f"a directory without {character}",
            )
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)?", str(request.nodes), re.ASCII):
        raise UsageError(f"{request.nodes!r}", where="nodes", why="must be a number or a range", hint="nodes: 2-4")
    if request.time_s is not None and not request.time_s > 0:
        raise UsageError(f"{request.time_s!r} s", where="time", why="must be more than nothing")
    limit_s = math.inf if request.time_s is None else request.time_s
    if not 0 < request.signal_lead_s < min(limit_s, _MAX_LEAD_S):
        raise UsageError(
            f"{request.signal_lead_s} s before the end of {limit_s:g} s",
            where="signal",
            why="a lead has to be shorter than the job, or Slurm signals it while it starts",
            hint="a longer time, or a shorter lead",
        )


def _check_option(option: str) -> None:
    if not _OPTION.fullmatch(option):
        raise UsageError(
            f"sbatch option {option[:80]!r}",
            why="must be a long option's name without its dashes",
            hint="constraint, exclude, reservation, …",
        )
    if option in _SET_HERE:
        raise UsageError(f"sbatch option {option!r}", why="it is set from a key of its own")
    if option in _REFUSED:
        raise UsageError(f"sbatch option {option!r}", why=_REFUSED[option])


def _check_text(option: str, value: str) -> None:
    if not value:
        raise UsageError("empty value", where=option, why="sbatch would read it as something else", hint="leave it out")
    for character in value:
        category = unicodedata.category(character)
        if category == "Cc":
            raise UsageError(
                f"{value[:80]!r}", where=option, why=f"the control character {character!r} would end the line it is on"
            )
        if category == "Cs":
            raise UsageError(f"{value[:80]!r}", where=option, why="it is not valid UTF-8")


def _parameters(request: SbatchRequest) -> dict[str, Any]:
    """What submitit is told. It renders options in sorted order and quotes every value."""
    extra = {option: value for option, value in request.extra.items() if value is not False}
    return {
        "job_name": request.job_name,
        "nodes": request.nodes,
        "ntasks_per_node": request.ntasks_per_node,
        "cpus_per_task": request.cpus_per_task,
        "gpus_per_node": request.gpus_per_node or None,
        "mem": request.mem,
        "time": _time_limit(request.time_s),
        "partition": request.partition,
        "account": request.account,
        "qos": request.qos,
        # Sites refuse workload keys they do not know, and submitit sets one.
        "wckey": None,
        # One log in the order things happened.
        "stderr_to_stdout": True,
        "setup": list(request.setup),
        "srun_args": list(request.srun_args),
        "additional_parameters": {
            **extra,
            "open-mode": "append",
            "requeue": True,
            "signal": f"{request.signal}@{request.signal_lead_s}",
        },
    }


def _time_limit(time_s: float | None) -> int | str | None:
    if time_s is None:
        return None
    return "UNLIMITED" if math.isinf(time_s) else math.ceil(time_s / 60)


def _executor(request: SbatchRequest, env: Mapping[str, str]) -> RequestExecutor:
    # Importing submitit takes a noticeable part of a second, which only a submission should pay.
    from resilient_launch.cluster.submitit_executor import RequestExecutor

    check_request(request)
    chosen = {"ACCOUNT": request.account, "PARTITION": request.partition, "QOS": request.qos}
    keep = [
        f"SBATCH_{name}"
        for name in _DEFAULTS_OF_THE_USER
        if chosen.get(name) is None and name.lower() not in request.extra
    ]
    executor = RequestExecutor(
        request.folder.absolute(), python=request.python, client_env=client_environment(env, keep)
    )
    executor.update_parameters(**_parameters(request))
    return executor
