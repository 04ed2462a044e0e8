"""From sbatch's options to a validated request, with Slurm's words for what is wrong."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from resilient_launch.cluster.fake import timefmt
from resilient_launch.cluster.fake.commands import Arguments, Call, CommandError, expand_nodes
from resilient_launch.cluster.fake.model import JobRequest, WarnSignal
from resilient_launch.cluster.fake.options import table
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.cluster.fake.users import user_name

OPTIONS = table(
    "account:A= acctg-freq= array:a= batch= bb= bbf= begin:b= chdir:D= cluster-constraint= clusters:M= comment= "
    "constraint:C= container= contiguous core-spec:S= cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task:c= "
    "deadline= delay-boot= dependency:d= distribution:m= error:e= exclude:x= exclusive=? export= export-file= "
    "extra-node-info:B= get-user-env=? gid= gpu-bind= gpu-freq= gpus:G= gpus-per-node= gpus-per-socket= "
    "gpus-per-task= gres= gres-flags= help:h hint= hold:H ignore-pbs input:i= job-name:J= kill-on-invalid-dep= "
    "licenses:L= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= "
    "nice=? no-kill:k=? no-requeue nodefile:F= nodelist:w= nodes:N= ntasks:n= ntasks-per-core= ntasks-per-gpu= "
    "ntasks-per-node= ntasks-per-socket= open-mode= output:o= overcommit:O oversubscribe:s parsable partition:p= "
    "power= prefer= priority= profile= propagate=? qos:q= quiet:Q reboot requeue reservation= signal= "
    "sockets-per-node= spread-job switches= test-only thread-spec= threads-per-core= time:t= time-min= tmp= uid= "
    "usage use-min-nodes verbose:v version:V wait:W wait-all-nodes= wckey= wrap="
)
_FAILED = "sbatch: error: Batch job submission failed: "
_UNITS_MB = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_NAMES = {name.name.removeprefix("SIG"): name.value for name in signal.Signals}


def signal_number(text: str) -> int:
    """The number of ``USR1``, ``SIGUSR1`` or ``10``. Raises ValueError."""
    name = text.upper().removeprefix("SIG")
    if name in _NAMES:
        return int(_NAMES[name])
    if name.isdigit() and 0 < int(name) < 65:
        return int(name)
    raise ValueError(f"unknown signal {text!r}")


def memory_mb(text: str) -> int:
    """MiB of ``500``, ``500M``, ``2G``, ``2GB``, …, rounded up. Raises ValueError."""
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", text.upper())
    if match is None:
        raise ValueError(f"bad memory {text!r}")
    exact = int(match.group(1)) * _UNITS_MB[match.group(2)]
    return int(exact) + (exact > int(exact))


def warn_signal(text: str) -> WarnSignal:
    """``[[R][B]:]<signal>[@<seconds>]``. Raises ValueError."""
    match = re.fullmatch(r"(?:([RBrb]{1,2}):?)?([A-Za-z0-9]+)(?:@(\d+))?", text)
    if match is None or int(match.group(3) or 0) > 65535:
        raise ValueError(f"bad signal {text!r}")
    lead_s = int(match.group(3)) if match.group(3) else 60
    flags = (match.group(1) or "").upper()
    return WarnSignal(signum=signal_number(match.group(2)), lead_s=lead_s, batch="B" in flags)


def _invalid(option: str) -> CommandError:
    return CommandError(f"sbatch: error: Invalid --{option} specification\n", 255)


def _number(options: Arguments, name: str) -> int | None:
    """A positive whole number, or None where the option is absent."""
    if name not in options:
        return None
    text = options.get(name)
    if not text.isdigit() or int(text) < 1:
        raise CommandError(f'sbatch: error: Invalid numeric value "{text}" for --{name}.\n')
    return int(text)


def _node_range(text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    if not low.isdigit() or (dash and not high.isdigit()):
        raise CommandError(f'sbatch: error: "{text}" is not a valid node count\n', 255)
    least, most = int(low), int(high or low)
    if most < least:
        reason = f"Maximum node count {most} is less than minimum node count {least}"
        raise CommandError(f"sbatch: error: {reason}\n", 255)
    if least < 1:
        raise CommandError(_FAILED + "Node count specification invalid\n")
    return least, most


def _gpus(options: Arguments, num_nodes: int, tasks_per_node: int) -> int:
    """GPUs per node, whichever option asks for them."""
    bad = CommandError("sbatch: error: Invalid generic resource (gres) specification\n")

    def count(text: str) -> int:
        last = text.split(":")[-1]
        if not last.isdigit():
            raise bad
        return int(last)

    if options.get("gpus-per-node"):
        return count(options.get("gpus-per-node"))
    if options.get("gpus-per-task"):
        return count(options.get("gpus-per-task")) * tasks_per_node
    if options.get("gpus"):
        return -(-count(options.get("gpus")) // num_nodes)
    total = 0
    for item in filter(None, options.get("gres").split(",")):
        kind = item.split(":")[0]
        if kind == "none":
            continue
        if kind != "gpu":
            raise CommandError(_FAILED + "Invalid generic resource (gres) specification\n")
        total += 1 if item == "gpu" else count(item)
    return total


def _names(spec: FakeSpec, text: str) -> tuple[str, ...]:
    names = expand_nodes("sbatch", text)
    if not set(names) <= set(spec.node_names):
        raise CommandError(_FAILED + "Invalid node name specified\n")
    return names


def _memory(options: Arguments, name: str) -> int:
    if name not in options:
        return 0
    try:
        return memory_mb(options.get(name))
    except ValueError:
        raise _invalid(name) from None


def _check_words(options: Arguments) -> None:
    """Values that Slurm refuses before it asks the controller."""
    if options.get("open-mode", "append") not in ("append", "truncate", "a", "t"):
        raise _invalid("open-mode")
    if options.get("exclusive", "user") not in ("user", "mcs", "exclusive"):
        raise _invalid("exclusive")


def build_request(
    spec: FakeSpec, call: Call, options: Arguments, *, script: str, source: str, now: float
) -> JobRequest:
    """The request that the options make. Raises CommandError."""
    _check_words(options)
    least, most = _node_range(options.get("nodes")) if "nodes" in options else (1, 1)
    tasks_per_node = _number(options, "ntasks-per-node")
    num_tasks = _number(options, "ntasks")
    nodelist = _names(spec, options.get("nodelist"))
    if "nodes" not in options and nodelist:
        least = most = len(nodelist)
    elif "nodes" not in options and num_tasks and tasks_per_node:
        least = most = -(-num_tasks // tasks_per_node)
    cwd = str(Path(call.cwd) / options.get("chdir"))
    partition = options.get("partition", spec.partitions[0].name).split(",")[0]
    if spec.partition(partition) is None:
        raise CommandError(
            f"sbatch: error: invalid partition specified: {partition}\n{_FAILED}Invalid partition name specified\n"
        )
    name = options.get(
        "job-name", "wrap" if "wrap" in options else "sbatch" if source == "/dev/stdin" else Path(source).name
    )
    return JobRequest(
        name=name,
        script=script,
        arguments=tuple(options.words[1:]),
        environment=_exported(options, call),
        cwd=cwd,
        umask=int(call.variable("SLURM_UMASK", "0022"), 8),
        uid=call.uid,
        gid=call.gid,
        account=options.get("account", user_name(call.uid)),
        partition=partition,
        qos=options.get("qos", "normal"),
        min_nodes=least,
        max_nodes=most,
        nodes_given="nodes" in options or bool(nodelist) or least > 1,
        num_tasks=num_tasks,
        tasks_per_node=tasks_per_node,
        cpus_per_task=_number(options, "cpus-per-task") or 1,
        cpus_per_task_given="cpus-per-task" in options,
        memory_mb=_memory(options, "mem"),
        memory_per_cpu_mb=_memory(options, "mem-per-cpu"),
        gpus=_gpus(options, least, tasks_per_node or 1),
        exclusive="exclusive" in options and options.get("exclusive") != "user",
        nodelist=nodelist,
        exclude=_names(spec, options.get("exclude")),
        constraint=options.get("constraint"),
        comment=options.get("comment"),
        requeue=_last_of(options, "requeue", "no-requeue") != "no-requeue",
        kill_on_invalid_dependency=options.get("kill-on-invalid-dep") == "yes",
        no_kill="no-kill" in options and options.get("no-kill") != "off",
        time_limit_s=_time_limit(options),
        signal=_signal(options),
        append=options.get("open-mode", "truncate").startswith("a"),
        append_given="open-mode" in options,
        export=options.get("export"),
        stdin=options.get("input", "/dev/null"),
        stdout=options.get("output", "slurm-%A_%a.out" if options.get("array") else "slurm-%j.out"),
        stderr=options.get("error"),
        hold="hold" in options,
        begin_time=_begin(options, now),
        priority=_priority(options),
        command="(null)" if "wrap" in options or source == "/dev/stdin" else str(Path(call.cwd) / source),
    )


def _last_of(options: Arguments, *names: str) -> str:
    """Which of several contradicting options came last."""
    return next((name for name in reversed(list(options.values)) if name in names), names[0])


def _exported(options: Arguments, call: Call) -> tuple[str, ...]:
    wanted = options.get("export", "ALL")
    if wanted == "ALL":
        return tuple(call.environment)
    words = [word for word in wanted.split(",") if word]
    everything = "ALL" in words
    fixed = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG") if words in (["NONE"], ["NIL"]) else ()
    kept = []
    for pair in call.environment:
        name = pair.partition("=")[0]
        if everything or name in words or name in fixed or name.startswith("SLURM_"):
            kept.append(pair)
    return (*kept, *(word for word in words if "=" in word))


def _time_limit(options: Arguments) -> int | None:
    if "time" not in options:
        return None
    try:
        return timefmt.parse_limit_s(options.get("time")) or None
    except ValueError:
        raise _invalid("time") from None


def _signal(options: Arguments) -> WarnSignal | None:
    if "signal" not in options:
        return None
    try:
        return warn_signal(options.get("signal"))
    except ValueError:
        raise _invalid("signal") from None


def _begin(options: Arguments, now: float) -> float:
    if "begin" not in options:
        return 0.0
    try:
        return timefmt.parse_moment(options.get("begin"), now)
    except ValueError:
        raise _invalid("begin") from None


def _priority(options: Arguments) -> int | None:
    text = options.get("priority")
    return int(text) if text.isdigit() else None
