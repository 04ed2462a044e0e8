"""sbatch options and environment variables that are not the user's to set, and why."""

from __future__ import annotations

import re
from typing import Literal

from resilient_launch.config.cursor import Cursor, check_text, describe
from resilient_launch.config.issues import ConfigIssue
from resilient_launch.config.values import raw_text
from resilient_launch.config.yamlpos import Entry, Scalar
from resilient_launch.core.errors import UsageError

_OWN_KEYS = {
    "account": "account",
    "chdir": "workdir",
    "cpus-per-gpu": "cpus_per_worker",
    "cpus-per-task": "cpus_per_worker",
    "export": "env",
    "export-file": "env",
    "gpus": "gpus_per_node",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-socket": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "job-name": "name",
    "mem": "memory",
    "mem-per-cpu": "memory",
    "mem-per-gpu": "memory",
    "nodes": "nodes",
    "ntasks": "workers_per_node",
    "ntasks-per-core": "workers_per_node",
    "ntasks-per-gpu": "workers_per_node",
    "ntasks-per-node": "workers_per_node",
    "ntasks-per-socket": "workers_per_node",
    "partition": "partition",
    "qos": "qos",
    "signal": "signal_lead",
    "tasks-per-node": "workers_per_node",
    "time": "time",
}
_RESERVED = {
    "array": "a run is one job",
    "clusters": "rlaunch speaks to one cluster",
    "error": "rlaunch keeps the logs in the run directory",
    "help": "it submits nothing",
    "input": "workers have no standard input",
    "job": "rlaunch knows its job by its id",
    "no-kill": "a gang that lost a node is requeued as a whole",
    "no-requeue": "a run that is not requeued cannot go on",
    "open-mode": "a requeue must not truncate the logs",
    "output": "rlaunch keeps the logs in the run directory",
    "parsable": "it changes the answer that rlaunch reads",
    "quiet": "it changes the answer that rlaunch reads",
    "requeue": "rlaunch always sets it",
    "test-only": "it submits nothing; rlaunch submit --test-only does that",
    "usage": "it submits nothing",
    "verbose": "it changes the answer that rlaunch reads",
    "version": "it submits nothing",
    "wait": "rlaunch submit --wait does that",
    "wait-all-nodes": "rlaunch sets it",
    "wrap": "rlaunch writes the batch script",
}
_OPTION = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TORCH_VARIABLES = frozenset(
    {
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "TORCHELASTIC_USE_AGENT_STORE",
        "WORLD_SIZE",
    }
)
_PREFIXES = {
    "RLAUNCH_": "rlaunch itself",
    "SLURM_": "Slurm",
    "SLURMD_": "Slurm",
    "SBATCH_": "sbatch's own options; use sbatch: and rlaunch's keys",
    "SUBMITIT_": "submitit",
}


def sbatch_options(cursor: Cursor) -> tuple[tuple[str, str | Literal[True]], ...]:
    """Further sbatch options by long name. ``true`` is an option without a value; anything else goes as written."""
    pairs: list[tuple[str, str | Literal[True]]] = []
    for entry in cursor.mapping("a mapping of options to values", "{constraint: a100}").entries:
        child = cursor.child(entry.key, entry.value)
        if issue := _bad_option(entry, child.key):
            cursor.report.issues.append(issue)
            continue
        pairs += [(entry.key, value) for value in child.read(_option_value)]
    return tuple(pairs)


def _bad_option(entry: Entry, path: str) -> ConfigIssue | None:
    name = entry.key
    spelt = name.lstrip("-").replace("_", "-").lower()
    if own := _OWN_KEYS.get(spelt):
        return entry.mark.issue(
            path, "reserved option", why=f"rlaunch sets it from {own}", hint=f"{own}: …, at the top"
        )
    if why := _RESERVED.get(spelt):
        return entry.mark.issue(path, "reserved option", why=why, hint="leave it out")
    if not _OPTION.fullmatch(name) or len(name) == 1:
        hint = f"{spelt}: …" if _OPTION.fullmatch(spelt) and len(spelt) > 1 else "constraint: …"
        return entry.mark.issue(path, "not an option", why="long names of sbatch, without leading dashes", hint=hint)
    if name == "gres" and isinstance(entry.value, Scalar) and re.search(r"\bgpu\b", entry.value.text):
        why = "rlaunch asks for them from gpus_per_node"
        return entry.value.mark.issue(path, "GPUs", why=why, hint="gpus_per_node: …, at the top")
    return None


def _option_value(cursor: Cursor) -> str | Literal[True]:
    node = cursor.scalar("one value", "text, a number, or true")
    if node.kind == "bool":
        if node.text.lower() == "true":
            return True
        raise UsageError("false", why="an option that is not wanted is not given", hint="leave the key out")
    if node.kind == "null" or not node.text:
        raise UsageError(describe(node), why="must be a value", hint="true for an option without a value")
    return check_text(node.text)


def environment(cursor: Cursor) -> tuple[tuple[str, str], ...]:
    """Environment variables, values exactly as written."""
    pairs: list[tuple[str, str]] = []
    for entry in cursor.mapping("a mapping of names to values", "{OMP_NUM_THREADS: 4}").entries:
        child = cursor.child(entry.key, entry.value)
        if why := _bad_variable(entry.key):
            cursor.report.issues.append(entry.mark.issue(child.key, "variable name", why=why, hint="leave it out"))
            continue
        pairs += [(entry.key, value) for value in child.read(raw_text)]
    return tuple(pairs)


def _bad_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        return "letters, digits and underscores, not starting with a digit"
    if name in _TORCH_VARIABLES:
        return "set for every worker by torch's elastic agent"
    owner = next((owner for prefix, owner in _PREFIXES.items() if name.startswith(prefix)), "")
    return f"belongs to {owner}" if owner else ""
