"""The file's vocabulary: for every section, its keys, how each is read and how it is written back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.store.hashing import ALGORITHMS
from resilient_launch.cluster.fake.spec import PartitionSpec
from resilient_launch.config import values as v
from resilient_launch.config.cursor import Cursor, Field, Fields, check_text, read_fields, write_fields
from resilient_launch.config.faults import read_faults, write_faults
from resilient_launch.config.reserved import environment, sbatch_options
from resilient_launch.config.schema import (
    CheckpointConfig,
    CodeConfig,
    HangConfig,
    HealthConfig,
    RestartConfig,
    StaggerConfig,
)
from resilient_launch.config.yamlpos import Scalar
from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import check_run_name
from resilient_launch.core.units import format_duration
from resilient_launch.policy.stagger import MAX_WRITERS

ALLOWANCES = ("topology", "code", "missing", "unexpected", "shape", "dtype")


def _section(attr: str, build: Callable[..., Any], fields: Fields) -> Field:
    return Field(
        attr,
        lambda cursor: build(**read_fields(cursor, fields)),
        lambda value: write_fields(value, fields),
        section=fields,
    )


def _write_mb(num_mb: int) -> str:
    return f"{num_mb}M"


def _name(cursor: Cursor) -> str:
    return check_run_name(v.word(cursor))


def _module(cursor: Cursor) -> str:
    text = v.word(cursor)
    if not all(part.isidentifier() for part in text.split(".")):
        hint = text.removesuffix(".py").replace("/", ".") if text.endswith(".py") else "pkg.train"
        raise UsageError(f"module {text!r}", why="must be a dotted name, as in python -m", hint=f"module: {hint}")
    return text


def _path(cursor: Cursor) -> str:
    return v.check_path(v.word(cursor))


def _workdir(cursor: Cursor) -> str:
    text = cursor.scalar("a directory", ".").text
    if text == "~" or text.startswith("~/"):
        try:
            text = str(Path(text).expanduser())
        except RuntimeError:
            raise UsageError("~", why="there is no home directory", hint="an absolute path") from None
    elif not text.strip():
        raise UsageError("empty text", why="must be a directory", hint="leave the key out")
    return v.check_path(text)


def _directory(cursor: Cursor) -> Path:
    return Path(_path(cursor))


def _writers(cursor: Cursor) -> int | None:
    if isinstance(cursor.node, Scalar) and cursor.node.text == "auto":
        return None
    return int(v.integer(1, MAX_WRITERS)(cursor))


def _pattern(cursor: Cursor) -> str:
    return check_text(v.word(cursor))


def _partition_name(cursor: Cursor) -> str:
    return check_run_name(v.word(cursor))


PARTITION: Fields = {
    "name": Field("name", _partition_name),
    "tier": Field("tier", v.integer(0, 65535)),
    "preempt": Field("preempt_mode", v.choice("off", "requeue", "cancel")),
    "grace": Field("grace_s", v.whole_seconds(0), format_duration),
}


def _partition(cursor: Cursor) -> PartitionSpec:
    values = read_fields(cursor, PARTITION)
    if "name" not in values and cursor.report.is_good(cursor.key):
        raise UsageError("no name", why="a partition has a name", hint="{name: low, tier: 1, preempt: requeue}")
    return PartitionSpec(**{"name": "", **values})


def _partitions(cursor: Cursor) -> tuple[PartitionSpec, ...]:
    found = tuple(
        spec
        for item in cursor.items("a list of partitions", "[{name: low, preempt: requeue}, {name: high, tier: 10}]")
        for spec in item.read(_partition)
    )
    names = [spec.name for spec in found]
    if cursor.report.is_good(cursor.key) and (not names or len(set(names)) < len(names)):
        raise UsageError("partitions", why="there must be one at least, each with its own name", hint="[{name: low}]")
    return found


def _write_partitions(specs: tuple[PartitionSpec, ...]) -> list[dict[str, Any]]:
    return [write_fields(spec, PARTITION) for spec in specs]


FAKE: Fields = {
    "nodes": Field("num_nodes", v.integer(1, 1024)),
    "cpus": Field("cpus", v.integer(1, 65536)),
    "gpus": Field("gpus", v.integer(0, 1024)),
    "memory": Field("memory_mb", v.memory_mb, _write_mb),
    "partitions": Field("partitions", _partitions, _write_partitions),
    "kill_wait": Field("kill_wait_s", v.whole_seconds(0), format_duration),
    "requeue_delay": Field("requeue_delay_s", v.duration(0), format_duration),
    "like": Field("like", v.choice("22.05", "24.11")),
    "signals": Field("signals", v.choice("tree", "task")),
    "send_user_signal": Field("send_user_signal", v.boolean),
    "accounting": Field("accounting", v.boolean),
}
CHECKPOINT: Fields = {
    "every": Field("every", v.every, v.write_every),
    "failures_per_1000_node_days": Field("failures_per_1000_node_days", v.number(0.001, 100_000)),
    "failure_history": Field("failure_history", _directory, str),
    "preempt_exempt": Field("preempt_exempt_s", v.duration(0), format_duration),
    "keep": Field("keep", v.integer(1)),
    "keep_spaced": Field("keep_spaced_s", v.duration(1), format_duration),
    "keep_every_steps": Field("keep_every_steps", v.integer(1)),
    "keep_best": Field("keep_best", v.best, v.write_best),
    "on_topology_change": Field("on_topology_change", v.choice("stop", "warn")),
    "on_code_change": Field("on_code_change", v.choice("stop", "warn")),
    "allow": Field("allow", v.texts(v.choice(*ALLOWANCES), "[code, dtype]"), list),
    "save_timeout": Field("save_timeout_s", v.duration(1), format_duration),
    "async": Field("is_async", v.boolean),
    "local_every_steps": Field("local_every_steps", v.integer(1)),
    "commit_by": Field("commit_by", v.choice("rename", "manifest")),
    "digest": Field("digest", v.choice(*ALGORITHMS)),
    "on_save_failure": Field("on_save_failure", v.choice("stop", "warn")),
}
STAGGER: Fields = {
    "group": Field("group", _directory, str),
    "writers": Field("writers", _writers),
    "max_wait": Field("max_wait_s", v.duration(0), format_duration),
}
RESTART: Fields = {
    "max_worker_restarts": Field("max_worker_restarts", v.integer(0)),
    "max_crashes": Field("max_crashes", v.integer(0)),
    "same_step": Field("same_step", v.integer(2)),
    "backoff": Field("backoff_s", v.duration(0), format_duration),
    "backoff_max": Field("backoff_max_s", v.duration(0), format_duration),
    "exclude_nodes": Field("exclude_nodes", v.boolean),
    "requeue_stragglers": Field("requeue_stragglers", v.boolean),
}
HANG: Fields = {
    "enabled": Field("enabled", v.boolean),
    "floor": Field("floor_s", v.duration(1), format_duration),
    "ceiling": Field("ceiling_s", v.duration(1), format_duration),
}
HEALTH: Fields = {
    "enabled": Field("enabled", v.boolean),
    "min_shm": Field("min_shm_mb", v.memory_mb, _write_mb),
    "min_tmp": Field("min_tmp_mb", v.memory_mb, _write_mb),
    "max_clock_skew": Field("max_clock_skew_s", v.duration(0), format_duration),
}
CODE: Fields = {
    "snapshot": Field("snapshot", v.boolean),
    "exclude": Field("exclude", v.texts(_pattern, "[data, '*.ckpt']"), list),
}

_string_list: Callable[[Any], list[Any]] = list
_mapping: Callable[[Any], dict[str, Any]] = dict

TOP: Fields = {
    "name": Field("name", _name),
    "script": Field("script", _path),
    "module": Field("module", _module),
    "command": Field("command", v.program, lambda argv: list(argv) or None),
    "args": Field("args", v.arguments, _string_list),
    "workdir": Field("workdir", _workdir, str, tilde_is_text=True),
    "python": Field("python", _path),
    "env": Field("env", environment, _mapping),
    "preload": Field("preload", v.boolean),
    "setup": Field("setup", v.shell_lines, _string_list),
    "nodes": Field("nodes", v.nodes, lambda nodes: nodes.min if nodes.min == nodes.max else str(nodes)),
    "workers_per_node": Field("workers_per_node", v.integer(1, 65536)),
    "global_batch": Field("global_batch", v.integer(1)),
    "gpus_per_node": Field("gpus_per_node", v.integer(0, 1024)),
    "cpus_per_worker": Field("cpus_per_worker", v.integer(1, 65536)),
    "memory": Field("memory_mb", v.memory_mb, _write_mb),
    "time": Field("time_s", v.time_limit, format_duration),
    "signal_lead": Field("signal_lead_s", v.whole_seconds(1, 65535), format_duration),
    "partition": Field("partition", v.word),
    "account": Field("account", v.word),
    "qos": Field("qos", v.word),
    "sbatch": Field("sbatch", sbatch_options, _mapping),
    "checkpoint": _section("checkpoint", CheckpointConfig, CHECKPOINT),
    "stagger": _section("stagger", StaggerConfig, STAGGER),
    "restart": _section("restart", RestartConfig, RESTART),
    "hang": _section("hang", HangConfig, HANG),
    "health": _section("health", HealthConfig, HEALTH),
    "code": _section("code", CodeConfig, CODE),
    "cluster": Field("cluster", v.choice("slurm", "fake")),
    # What the file leaves open is sized to the run, so the rest of the file must be known first.
    "fake": _section("fake", dict, FAKE),
    "faults": Field("faults", read_faults, write_faults),
}

ELSEWHERE = {
    **{key: f"checkpoint.{key}" for key in CHECKPOINT},
    **{key: f"stagger.{key}" for key in STAGGER},
    **{key: f"restart.{key}" for key in RESTART},
    **{key: f"code.{key}" for key in CODE},
    "cpus": "cpus_per_worker",
    "gpus": "gpus_per_node",
    "mem": "memory",
    "job_name": "name",
    "time_limit": "time",
    "ntasks_per_node": "workers_per_node",
    "nproc_per_node": "workers_per_node",
    "entrypoint": "script",
    "requeue": "restart.max_crashes",
}
