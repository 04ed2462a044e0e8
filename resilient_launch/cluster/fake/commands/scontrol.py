"""scontrol: show, requeue, hold, release, update, ping."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake import outages, timefmt
from resilient_launch.cluster.fake.commands import (
    Arguments,
    Call,
    CommandError,
    Context,
    Reply,
    id_words,
    read_arguments,
)
from resilient_launch.cluster.fake.commands import reservation as reservations
from resilient_launch.cluster.fake.lifecycle import NO_SUCH_JOB, NotAllowedError
from resilient_launch.cluster.fake.model import Job
from resilient_launch.cluster.fake.options import table
from resilient_launch.cluster.fake.render import block, config_lines, job_record, node_record, partition_record
from resilient_launch.cluster.fake.users import user_name
from resilient_launch.core.errors import UsageError

OPTIONS = table(
    "all:a clusters:M= details:d federation:F future help:h hide local:L oneliner:o quiet:Q sibling uid:u= usage "
    "verbose:v version:V json yaml"
)
_UPDATE_KEYS = ("starttime", "timelimit", "endtime", "comment", "priority", "requeue", "excnodelist")


def run(context: Context, call: Call) -> Reply:
    """One scontrol command line."""
    given = read_arguments("scontrol", call.arguments, OPTIONS)
    if "version" in given:
        return Reply(out=f"slurm-wlm {context.life.spec.slurm_version}\n")
    if not given.words:
        raise CommandError("scontrol: error: the interactive mode is not offered by the fake cluster\n")
    verb, *words = given.words
    actions: dict[str, Callable[[Context, Call, Arguments, list[str]], Reply]] = {
        "show": _show,
        "requeue": _requeue,
        "requeuehold": _requeue_hold,
        "hold": _hold,
        "uhold": _hold,
        "release": _release,
        "update": _update,
        "create": _create,
        "delete": _delete,
        "ping": _ping,
        "version": lambda context, *_: Reply(out=f"slurm-wlm {context.life.spec.slurm_version}\n"),
    }
    action = actions.get(verb.lower())
    if action is None:
        raise CommandError(f"invalid keyword: {verb}\n")
    return action(context, call, given, words)


def _ping(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    return Reply(out="Slurmctld(primary) at localhost is UP\n")


def _show(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    if not words:
        raise CommandError("too few arguments for keyword:show\n")
    entity, *rest = words
    entity, equals, value = entity.partition("=")
    name = value if equals else (rest[0] if rest else "")
    kinds: dict[str, Callable[[Context, Arguments, str], Reply]] = {
        "job": _show_job,
        "jobs": _show_job,
        "jobid": _show_job,
        "node": _show_node,
        "nodes": _show_node,
        "partition": _show_partition,
        "partitions": _show_partition,
        "config": _show_config,
        "reservation": _show_reservation,
        "reservations": _show_reservation,
        "hostnames": _show_hostnames,
        "hostname": _show_hostnames,
        "hostlist": _show_hostlist,
        "hostlistsorted": _show_hostlist,
    }
    kind = kinds.get(entity.lower())
    if kind is None:
        raise CommandError(f"invalid entity:{entity} for keyword:show \n")
    if entity.lower().startswith("hostname"):
        name = name or call.variable("SLURM_JOB_NODELIST")
    return kind(context, given, name)


def _show_job(context: Context, given: Arguments, name: str) -> Reply:
    jobs = list(context.life.jobs.values())
    if name:
        jobs = context.life.find(name)
        if not jobs and "_" in name:
            return Reply(out=f"Job {name} not found\n", code=1)
        if not jobs:
            raise CommandError(f"slurm_load_jobs error: {NO_SUCH_JOB}\n")
    if not jobs:
        return Reply(out="No jobs in the system\n")
    spec, oneliner = context.life.spec, "oneliner" in given
    records = (job_record(spec, job, context.now, details="details" in given) for job in jobs)
    return Reply(out="".join(block(record, oneliner=oneliner) for record in records))


def _show_node(context: Context, given: Arguments, name: str) -> Reply:
    life = context.life
    names = _names(name) if name else list(life.nodes)
    out = ""
    for item in names:
        if item not in life.nodes:
            return Reply(out=f"{out}Node {item} not found\n", code=1)
        started = float(life.database.meta("started") or 0)
        out += block(node_record(life, life.nodes[item], started, context.now), oneliner="oneliner" in given)
    return Reply(out=out)


def _show_partition(context: Context, given: Arguments, name: str) -> Reply:
    spec = context.life.spec
    partitions = [partition for partition in spec.partitions if not name or partition.name == name]
    if not partitions:
        return Reply(out=f"Partition {name} not found\n", code=1)
    oneliner = "oneliner" in given
    return Reply(out="".join(block(partition_record(spec, partition), oneliner=oneliner) for partition in partitions))


def _show_config(context: Context, given: Arguments, name: str) -> Reply:
    lines = config_lines(context.life.spec, context.now, context.life.database.meta("state_dir") or "")
    return Reply(out="\n".join(lines) + "\n")


def _show_reservation(context: Context, given: Arguments, name: str) -> Reply:
    return reservations.show(context, name, oneliner="oneliner" in given)


def _show_hostnames(context: Context, given: Arguments, name: str) -> Reply:
    try:
        return Reply(out="".join(f"{host}\n" for host in hostlist.expand(name)))
    except UsageError:
        raise CommandError(f"Invalid hostlist: {name}\n") from None


def _show_hostlist(context: Context, given: Arguments, name: str) -> Reply:
    try:
        return Reply(out=hostlist.compress(name.split(",")) + "\n")
    except UsageError:
        raise CommandError(f"Invalid hostlist: {name}\n") from None


def _each(context: Context, words: list[str], change: Callable[[Job], None]) -> Reply:
    """Change every job of lists such as ``7,8``, ``7_[1-2]`` or ``jobid=7``, and report what can't be."""
    if not words:
        return Reply(code=1, err="too few arguments\n")
    reply = Reply()
    for word in id_words(",".join(words)):
        text = word.rpartition("=")[2]
        jobs = context.life.find(text)
        answers: dict[str, list[Job]] = {}
        for job in jobs:
            try:
                change(job)
                answers.setdefault("", []).append(job)
            except NotAllowedError as refusal:
                answers.setdefault(str(refusal), []).append(job)
        if jobs and not answers.keys() - {""}:
            continue
        reply.code = 1
        if "_" in text or (jobs and jobs[0].array is not None):
            reply.err += _of_array(text, answers)
        else:
            reply.err += f"{next(iter(answers), NO_SUCH_JOB)} for job {text}\n"
    return reply


def _of_array(text: str, answers: Mapping[str, list[Job]]) -> str:
    """A line for each answer and the tasks that got it, as Slurm writes them once one of them is an error."""
    if not answers:
        return f"{text}: {NO_SUCH_JOB}\n"
    lines = []
    for answer, jobs in answers.items():
        numbers = ",".join(str(job.array.index) for job in jobs if job.array is not None)
        lines.append(f"{text.partition('_')[0]}_{numbers}: {answer or 'No error'}\n")
    return "".join(lines)


def _requeue(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    return _each(context, words, lambda job: context.life.requeue(job, context.now))


def _requeue_hold(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    return _each(context, words, lambda job: context.life.requeue(job, context.now, hold=True))


def _hold(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    is_admin = call.uid == 0 and given.words[0].lower() == "hold"
    return _suspended(_each(context, words, lambda job: context.life.hold(job, by_admin=is_admin)))


def _release(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    return _suspended(_each(context, words, context.life.release))


def _suspended(reply: Reply) -> Reply:
    """hold and release say what is wrong twice."""
    if reply.code and " for job " in reply.err:
        reply.err += f"slurm_suspend error: {reply.err.partition(' for job ')[0]}\n"
    return reply


def _pairs(words: list[str]) -> dict[str, str]:
    """``NAME=value`` words, the names in lower case; a word without a value stands for itself."""
    return {name.lower(): value for name, _, value in (word.partition("=") for word in words)}


def _create(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    values = _pairs(words)
    if not values.keys() & {"reservation", "reservationname"}:
        raise CommandError("Invalid creation entity\n")
    return reservations.create(context, values, user_name(call.uid))


def _delete(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    values = _pairs(words)
    return reservations.delete(context, values.get("reservationname") or values.get("reservation", ""))


def _update(context: Context, call: Call, given: Arguments, words: list[str]) -> Reply:
    pairs = [word.partition("=") for word in words]
    values = {name.lower(): value for name, equals, value in pairs if equals}
    if "nodename" in values:
        return _update_nodes(context, values)
    ids = values.pop("jobid", values.pop("job", ""))
    unknown = [name for name, equals, _ in pairs if equals and name.lower() not in {*_UPDATE_KEYS, "jobid", "job"}]
    if not ids or unknown:
        raise CommandError(
            f"Update of this parameter is not supported: {' '.join(unknown) or ' '.join(words)}\nRequest aborted\n"
        )
    return _each(context, [ids], lambda job: _update_job(context, job, values))


def _update_job(context: Context, job: Job, values: dict[str, str]) -> None:
    """Raises NotAllowedError for what the job's state, or the value, does not allow."""
    now = context.now
    if job.is_over and values.keys() != {"comment"}:
        raise NotAllowedError("Job has already finished")
    for name, value in values.items():
        if name == "starttime":
            if not job.is_pending:
                raise NotAllowedError("Job is no longer pending execution")
            job.begin = _moment(value, now)
            job.eligible = max(job.begin, job.submit)
            job.reason = "JobHeldUser" if job.held else "BeginTime" if job.begin > now else "None"
        elif name == "timelimit":
            _set_limit(job, value)
        elif name == "endtime":
            end = _moment(value, now)
            if not job.is_running or job.preempt:
                raise NotAllowedError("Job has already finished" if job.preempt else "Invalid time specified")
            job.end = max(end, now)
            job.time_limit_s = max(60, round((job.end - job.start + 59) // 60) * 60)
        elif name == "comment":
            job.comment = value
        elif name == "requeue":
            job.request = replace(job.request, requeue=value == "1")
        elif name == "excnodelist":
            if not job.is_pending:
                raise NotAllowedError("Job is no longer pending execution")
            job.request = replace(job.request, exclude=tuple(_known_nodes(context, value)))
        elif name == "priority" and value.isdigit():
            job.priority = int(value)
    context.life.touch(job)


def _names(text: str) -> list[str]:
    """The names that a host list stands for; text that is none is a name that no node has."""
    try:
        return list(hostlist.expand(text))
    except UsageError:
        return [text]


def _known_nodes(context: Context, text: str) -> list[str]:
    names = _names(text)
    if any(name not in context.life.nodes for name in names):
        raise NotAllowedError("Invalid node name specified")
    return names


def _moment(text: str, now: float) -> float:
    try:
        return timefmt.parse_moment(text, now)
    except ValueError:
        raise NotAllowedError("Invalid time specified") from None


def _set_limit(job: Job, text: str) -> None:
    if job.preempt:
        raise NotAllowedError("Job has already finished")
    sign = text[:1] if text[:1] in "+-" else ""
    try:
        limit_s = timefmt.parse_limit_s(text.removeprefix(sign) if sign else text)
    except ValueError:
        raise NotAllowedError("Requested time limit is invalid (missing or exceeds some limit)") from None
    if sign and limit_s is not None and job.time_limit_s is not None:
        limit_s = job.time_limit_s + (limit_s if sign == "+" else -limit_s)
    job.time_limit_s = limit_s
    if job.is_running:
        job.end = 0.0 if limit_s is None else job.start + limit_s


def _update_nodes(context: Context, values: dict[str, str]) -> Reply:
    life = context.life
    state = values.get("state", "").upper()
    for name in _names(values["nodename"]):
        node = life.nodes.get(name)
        if node is None:
            raise CommandError("slurm_update error: Invalid node name specified\n")
        if state in ("DRAIN", "DOWN") and not values.get("reason"):
            raise CommandError("You must specify a reason when DOWNING or DRAINING a node. Request denied\n")
        if state == "DRAIN":
            outages.drain_node(life, node, values["reason"], context.now)
        elif state in ("RESUME", "UNDRAIN", "IDLE"):
            outages.resume_node(life, node)
        elif state == "DOWN":
            outages.set_down(life, node, values["reason"], context.now)
        else:
            raise CommandError(f"Invalid input: State={state}\nRequest aborted\n")
    return Reply()
