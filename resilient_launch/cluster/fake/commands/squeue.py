"""squeue: what waits and runs."""

from __future__ import annotations

from collections.abc import Mapping

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake import arrays, timefmt
from resilient_launch.cluster.fake.commands import (
    Arguments,
    Call,
    CommandError,
    Context,
    Reply,
    expand_nodes,
    id_words,
    layout,
    read_arguments,
)
from resilient_launch.cluster.fake.model import Job, JobState
from resilient_launch.cluster.fake.options import table
from resilient_launch.cluster.fake.render import num_cpus
from resilient_launch.cluster.fake.users import group_name, user_name

OPTIONS = table(
    "account:A= all:a array:r array-unique clusters:M= federation Format:O= format:o= help hide iterate:i= "
    "job:j= jobs= json licenses:L= local long:l me name:n= noconvert noheader:h nodelist:w= nodes= partition:p= "
    "priority:P qos:q= reservation:R= sibling sort:S= start states:t= state= steps:s=? user:u= users= usage "
    "verbose:v version:V yaml"
)
_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_TITLES = {
    "i": "JOBID", "A": "JOBID", "F": "ARRAY_JOB_ID", "K": "ARRAY_TASK_ID", "P": "PARTITION", "j": "NAME", "u": "USER",
    "U": "UID", "g": "GROUP", "G": "GROUP", "t": "ST", "T": "STATE", "M": "TIME", "l": "TIME_LIMIT", "L": "TIME_LEFT",
    "D": "NODES", "C": "CPUS", "R": "NODELIST(REASON)", "N": "NODELIST", "r": "REASON", "V": "SUBMIT_TIME",
    "S": "START_TIME", "e": "END_TIME", "a": "ACCOUNT", "q": "QOS", "p": "PRIORITY", "Q": "PRIORITY", "k": "COMMENT",
    "Z": "WORK_DIR", "o": "COMMAND", "B": "EXEC_HOST", "f": "FEATURES", "m": "MIN_MEMORY", "b": "TRES_PER_NODE",
    "E": "DEPENDENCY", "x": "EXC_NODES", "n": "REQ_NODES", "h": "OVER_SUBSCRIBE", "y": "NICE",
}  # fmt: skip
_LONG_NAMES = {
    "jobid": "A", "jobarrayid": "i", "arrayjobid": "F", "arraytaskid": "K", "partition": "P", "name": "j",
    "username": "u", "userid": "U", "statecompact": "t", "state": "T", "timeused": "M", "timelimit": "l",
    "timeleft": "L", "numnodes": "D", "numcpus": "C", "reasonlist": "R", "nodelist": "N", "reason": "r",
    "submittime": "V", "starttime": "S", "endtime": "e", "account": "a", "qos": "q", "priority": "p",
    "prioritylong": "Q", "comment": "k", "workdir": "Z", "command": "o", "batchhost": "B", "dependency": "E",
    "feature": "f", "groupname": "g",
}  # fmt: skip
_STATES = (
    "PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,DEADLINE,OUT_OF_MEMORY,"
    "COMPLETING,CONFIGURING,RESIZING,RESV_DEL_HOLD,REQUEUED,REQUEUE_FED,REQUEUE_HOLD,REVOKED,SIGNALING,SPECIAL_EXIT,"
    "STAGE_OUT,STOPPED"
)
_COMPACT = {
    "PD": "PENDING", "R": "RUNNING", "S": "SUSPENDED", "CD": "COMPLETED", "CA": "CANCELLED", "F": "FAILED",
    "TO": "TIMEOUT", "NF": "NODE_FAIL", "PR": "PREEMPTED", "CG": "COMPLETING", "CF": "CONFIGURING", "RQ": "REQUEUED",
    "RH": "REQUEUE_HOLD", "BF": "BOOT_FAIL", "DL": "DEADLINE", "OOM": "OUT_OF_MEMORY",
}  # fmt: skip


def run(context: Context, call: Call) -> Reply:
    """List the jobs that match, pending ones first, as squeue's default order has it."""
    given = read_arguments("squeue", call.arguments, OPTIONS)
    jobs = [job for job in context.life.jobs.values() if _matches(given, call, job)]
    words = _job_words(given)
    if words is not None:
        wanted = {job.job_id for word in words for job in context.life.find(word)}
        if len(words) == 1 and not wanted:
            raise CommandError("slurm_load_jobs error: Invalid job id specified\n")
        jobs = [job for job in jobs if job.job_id in wanted]
    jobs.sort(key=lambda job: (not job.is_pending, -job.priority, job.job_id))
    rows = [fields(context, job) for job in jobs] if "array" in given else _folded(context, jobs)
    if "Format" in given:
        return Reply(out=_long_format(given, rows))
    text = given.get("format") or call.variable("SQUEUE_FORMAT") or (_LONG if "long" in given else _DEFAULT)
    lines = [] if "noheader" in given else [layout(text, _TITLES)]
    lines += [layout(text, row) for row in rows]
    return Reply(out="".join(f"{line}\n" for line in lines))


def _job_words(given: Arguments) -> list[str] | None:
    text = given.get("job") or given.get("jobs")
    if not text:
        return None
    words = id_words(text)
    for word in words:
        if not word.split("_")[0].isdigit():
            raise CommandError(f"squeue: error: Invalid job id: {word}\n")
    return words


def _folded(context: Context, jobs: list[Job]) -> list[Mapping[str, str]]:
    """A row a job; the tasks of an array that have not started yet share one."""
    waiting: dict[int, list[Job]] = {}
    for job in jobs:
        if job.array is not None and job.has_never_run:
            waiting.setdefault(job.array.array_id, []).append(job)
    rows: list[Mapping[str, str]] = []
    for job in jobs:
        if job.array is None or not job.has_never_run:
            rows.append(fields(context, job))
        elif group := waiting.pop(job.array.array_id, []):
            numbers = arrays.write((task.array.index for task in group if task.array), job.array.limit)
            row = {**fields(context, job), "A": str(job.array.array_id), "K": numbers}
            rows.append({**row, "i": f"{job.array.array_id}_[{numbers}]"})
    return rows


def _matches(given: Arguments, call: Call, job: Job) -> bool:
    request = job.request
    states = (given.get("states") or given.get("state")).upper()
    if not states:
        if job.is_over:
            return False
    elif states != "ALL":
        names = set()
        for word in states.split(","):
            name = _COMPACT.get(word, word)
            if name not in _STATES.split(","):
                raise CommandError(
                    f"squeue: error: Invalid job state specified: {word}\n"
                    f"squeue: error: Valid job states include: {_STATES}\n\n"
                )
            names.add(name)
        if not names & job.state_names:
            return False
    if "me" in given and request.uid != call.uid:
        return False
    users = given.get("user") or given.get("users")
    if users and not {user_name(request.uid), str(request.uid)} & set(users.split(",")):
        return False
    for option, value in (("partition", request.partition), ("name", request.name), ("account", request.account)):
        if option in given and value not in given.get(option).split(","):
            return False
    wanted_nodes = given.get("nodelist") or given.get("nodes")
    return not wanted_nodes or bool(set(expand_nodes("squeue", wanted_nodes)) & set(job.nodes))


def fields(context: Context, job: Job) -> Mapping[str, str]:
    """A job's values by squeue's format letters."""
    request, now = job.request, context.now
    ended = job.is_over or job.completing
    run_s = 0.0 if job.is_pending and not job.completing else ((job.run_end if ended else now) or now) - job.start
    limit_s = job.time_limit_s
    left = None if limit_s is None else (limit_s if not job.start else (job.end or now) - now)
    reason = job.description or job.reason
    nodes = hostlist.compress(job.nodes)
    shows_reason = (job.is_pending and not job.completing) or job.state in (JobState.FAILED, JobState.TIMEOUT)
    memory = request.memory_mb or request.memory_per_cpu_mb
    user = user_name(request.uid)
    return {
        "i": job.shown_id, "A": str(job.job_id), "F": str(job.array.array_id if job.array else job.job_id),
        "K": str(job.array.index) if job.array else "N/A", "P": request.partition,
        "j": request.name, "u": user, "U": str(request.uid), "g": group_name(request.gid), "G": str(request.gid),
        "t": job.shown_compact, "T": job.shown_state, "M": timefmt.short_duration(run_s),
        "l": timefmt.short_duration(limit_s), "L": timefmt.short_duration(left),
        "D": str(len(job.nodes) or request.min_nodes), "C": str(num_cpus(job)),
        "R": f"({reason})" if shows_reason else nodes, "N": nodes, "r": reason, "V": timefmt.moment(job.submit),
        "S": _or_na(job.start or (job.begin if job.reason == "BeginTime" else 0)), "e": _or_na(job.end),
        "a": request.account, "q": request.qos, "p": f"{job.priority / 4294967295:.14f}", "Q": str(job.priority),
        "k": job.comment or "(null)", "Z": request.cwd, "o": request.command, "B": job.batch_host or "n/a",
        "f": request.constraint or "(null)", "m": f"{memory}M" if memory else "0",
        "b": f"gres:gpu:{request.gpus}" if request.gpus else "N/A", "E": job.dependency or "(null)",
        "x": hostlist.compress(request.exclude), "n": hostlist.compress(request.nodelist),
        "h": "NO" if request.exclusive else "OK", "y": "0", "RESTART_COUNT": str(job.restarts),
        "REQUEUE": str(int(request.requeue)), "PREEMPT_TIME": timefmt.moment(job.preempt) if job.preempt else "N/A",
    }  # fmt: skip


def _or_na(epoch_s: float) -> str:
    return timefmt.moment(epoch_s) if epoch_s else "N/A"


def _long_format(given: Arguments, jobs: list[Mapping[str, str]]) -> str:
    columns = []
    for word in filter(None, given.get("Format").split(",")):
        name, colon, width = word.strip().partition(":")
        letter = _LONG_NAMES.get(name.lower())
        special = {"restartcnt": "RESTART_COUNT", "requeue": "REQUEUE", "preemptime": "PREEMPT_TIME"}.get(name.lower())
        if letter is None and special is None:
            raise CommandError(f"squeue: error: Invalid job format specification: {name}\n")
        columns.append((letter, special or _TITLES[str(letter)], int(width) if width.isdigit() else 20, bool(colon)))

    def line(values: Mapping[str, str]) -> str:
        return "".join(values[letter or title][:width].ljust(width) for letter, title, width, _ in columns)

    titles = {letter or title: title for letter, title, _, _ in columns}
    rows = [] if "noheader" in given else [line(titles)]
    rows += [line(job) for job in jobs]
    return "".join(f"{row}\n" for row in rows)
