"""sacct: one row per run of a job and per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake import timefmt
from resilient_launch.cluster.fake.commands import (
    Arguments,
    Call,
    CommandError,
    Context,
    Reply,
    id_words,
    read_arguments,
)
from resilient_launch.cluster.fake.model import Job, JobState, Step, code_pair
from resilient_launch.cluster.fake.options import table
from resilient_launch.cluster.fake.render import num_cpus, tres
from resilient_launch.cluster.fake.users import group_name, user_name

OPTIONS = table(
    "accounts:A= allclusters:L allocations:X allusers:a array batch-script brief:b clusters:M= completion:c "
    "constraints:C= delimiter= duplicates:D endtime:E= env-vars flags:F= format:o= gid:g= group= help:h "
    "helpformat:e jobs:j= json local-only long:l name= ncpus:I= nnodes:i= nodelist:N= noconvert noheader:n "
    "parsable:p parsable2:P partition:r= qos:q= reason:R= starttime:S= state:s= timelimit-max:K= timelimit-min:k= "
    "truncate:T uid:u= units= usage user= use-local-uid verbose:v version:V wckeys:W= whole-hetjob=? "
    "x-associations:x= yaml"
)
_DEFAULT = "jobid,jobname,partition,account,alloccpus,state,exitcode"
_LOST = (
    "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection to "
    "host:localhost:6819: Connection refused\n"
    "sacct: error: Sending PersistInit msg: Connection refused\n"
    "sacct: error: Problem talking to the database: Connection refused\n"
)
_BRIEF = "jobid,state,exitcode"
_WIDTHS = {
    "jobid": ("JobID", -12), "jobidraw": ("JobIDRaw", -12), "jobname": ("JobName", 10), "partition": ("Partition", 10),
    "account": ("Account", 10), "alloccpus": ("AllocCPUS", 10), "ncpus": ("NCPUS", 10), "state": ("State", 10),
    "exitcode": ("ExitCode", 8), "derivedexitcode": ("DerivedExitCode", 15), "nodelist": ("NodeList", 15),
    "nnodes": ("NNodes", 8), "allocnodes": ("AllocNodes", 10), "reqnodes": ("ReqNodes", 8), "reqcpus": ("ReqCPUS", 8),
    "start": ("Start", 19), "end": ("End", 19), "submit": ("Submit", 19), "eligible": ("Eligible", 19),
    "elapsed": ("Elapsed", 10), "elapsedraw": ("ElapsedRaw", 10), "timelimit": ("Timelimit", 10),
    "timelimitraw": ("TimelimitRaw", 12), "user": ("User", 9), "uid": ("UID", 6), "group": ("Group", 9),
    "qos": ("QOS", 10), "ntasks": ("NTasks", 8), "comment": ("Comment", 14), "workdir": ("WorkDir", 20),
    "cluster": ("Cluster", 10), "reason": ("Reason", 22), "priority": ("Priority", 10),
    "submitline": ("SubmitLine", 20),
    "alloctres": ("AllocTRES", 10), "reqtres": ("ReqTRES", 10), "gid": ("GID", 6), "restarts": ("Restarts", 8),
}  # fmt: skip


def run(context: Context, call: Call) -> Reply:
    """The newest run of each job, or with ``-D`` all of them."""
    given = read_arguments("sacct", call.arguments, OPTIONS)
    if context.life.accounting.mode == "disabled":
        raise CommandError("Slurm accounting storage is disabled\n")
    if context.life.accounting.mode == "lost":
        raise CommandError(_LOST)
    columns = _columns(given, call)
    runs = _runs(context, given, call)
    rows = []
    for job in runs:
        rows.append([_job_value(context, job, name) for name, _ in columns])
        if "allocations" not in given:
            rows += [[_step_value(context, job, step, name) for name, _ in columns] for step in job.steps]
    return Reply(out=_table(given, columns, rows), delay_s=context.life.accounting.delay_s)


def _columns(given: Arguments, call: Call) -> list[tuple[str, int]]:
    text = given.get("format") or call.variable("SACCT_FORMAT") or (_BRIEF if "brief" in given else _DEFAULT)
    columns = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        name, _, width = word.partition("%")
        name = name.lower()
        if name not in _WIDTHS:
            raise CommandError(f'sacct: error: Invalid field requested: "{word}"\n')
        columns.append((name, int(width) if width.lstrip("-").isdigit() else _WIDTHS[name][1]))
    return columns


def _runs(context: Context, given: Arguments, call: Call) -> list[Job]:
    life = context.life
    words = id_words(given.joined("jobs"))
    jobs = [word.split(".")[0] for word in words]
    for word, job_id in zip(words, jobs, strict=True):
        if not job_id.split("_")[0].isdigit():
            raise CommandError(f"sacct: fatal: Bad job/step specified: {word}\n")
    finished = life.database.runs({int(job_id.split("_")[0]) for job_id in jobs} if jobs else None)
    known = [*finished, *life.jobs.values()]
    rows = {(job.job_id, job.run): job for job in known if not jobs or any(job.is_meant_by(text) for text in jobs)}
    runs = sorted(rows.values(), key=_place)
    if "duplicates" not in given:
        newest = {job.job_id: job for job in runs}
        runs = list(newest.values())
    return [job for job in runs if _matches(context, given, call, job)]


def _place(job: Job) -> tuple[int, int, int]:
    """Tasks of an array come by their number: the last one's job id is the array's own."""
    return (job.job_id, 0, job.run) if job.array is None else (job.array.array_id, job.array.index, job.run)


def _matches(context: Context, given: Arguments, call: Call, job: Job) -> bool:
    try:
        since = timefmt.parse_moment(given.get("starttime"), context.now) if given.get("starttime") else 0.0
        until = timefmt.parse_moment(given.get("endtime"), context.now) if given.get("endtime") else context.now + 1
    except ValueError:
        raise CommandError("sacct: error: Invalid time specification\n") from None
    if (job.run_end or context.now) < since or job.submit > until:
        return False
    user = given.get("user") or given.get("uid")
    if user and not {user_name(job.request.uid), str(job.request.uid)} & set(user.split(",")):
        return False
    if given.get("name") and job.request.name not in given.get("name").split(","):
        return False
    states = [word.upper() for word in given.get("state").split(",") if word]
    state = _state(job).split(" ")[0]
    return not states or any(word in (state, JobState(state).compact) for word in states)


def _state(job: Job) -> str:
    state = job.run_state if job.run_state is not None else job.state
    if state is JobState.CANCELLED:
        return f"CANCELLED by {job.cancelled_by or 0}"
    return state.value


def _elapsed_s(context: Context, job: Job) -> float:
    return (job.run_end or context.now) - job.start if job.start else 0.0


def _derived_status(context: Context, job: Job) -> int:
    """22.05 writes it down when the job ends, whatever its steps still come to."""
    if context.life.spec.like != "22.05" or not job.run_end:
        return job.derived_status
    return job.derived_status_at(job.run_end)


def _job_value(context: Context, job: Job, name: str) -> str:
    request = job.request
    status = 0 if job.run_state is None else job.exit_status
    values: dict[str, Callable[[], str]] = {
        "jobid": lambda: job.shown_id, "jobidraw": lambda: str(job.job_id), "jobname": lambda: request.name,
        "partition": lambda: request.partition, "account": lambda: request.account,
        "alloccpus": lambda: str(num_cpus(job) if job.nodes else 0), "ncpus": lambda: str(num_cpus(job)),
        "reqcpus": lambda: str(num_cpus(job)), "state": lambda: _state(job), "exitcode": lambda: code_pair(status),
        "derivedexitcode": lambda: code_pair(_derived_status(context, job)),
        "nodelist": lambda: hostlist.compress(job.nodes) or "None assigned",
        "nnodes": lambda: str(len(job.nodes) or request.min_nodes), "allocnodes": lambda: str(len(job.nodes)),
        "reqnodes": lambda: str(request.min_nodes), "start": lambda: timefmt.moment(job.start),
        "end": lambda: timefmt.moment(job.run_end), "submit": lambda: timefmt.moment(job.submit),
        "eligible": lambda: timefmt.moment(job.eligible), "elapsed": lambda: timefmt.duration(_elapsed_s(context, job)),
        "elapsedraw": lambda: str(int(_elapsed_s(context, job))),
        "timelimit": lambda: timefmt.duration(job.time_limit_s),
        "timelimitraw": lambda: "UNLIMITED" if job.time_limit_s is None else str(job.time_limit_s // 60),
        "user": lambda: user_name(request.uid), "uid": lambda: str(request.uid), "gid": lambda: str(request.gid),
        "group": lambda: group_name(request.gid), "qos": lambda: request.qos, "ntasks": lambda: "",
        "comment": lambda: job.comment, "workdir": lambda: request.cwd, "cluster": lambda: context.life.spec.name,
        "reason": lambda: job.reason, "priority": lambda: str(job.priority),
        "submitline": lambda: f"sbatch {request.command}",
        "alloctres": lambda: tres(job) if job.nodes else "", "reqtres": lambda: tres(job),
        "restarts": lambda: str(job.run),
    }  # fmt: skip
    return values[name]()


def _step_value(context: Context, job: Job, step: Step, name: str) -> str:
    nodes = [place.node for place in step.nodes]
    end = step.end or context.now
    tasks = sum(place.num_tasks for place in step.nodes)
    values = {
        "jobid": f"{job.shown_id}.{step.name}", "jobidraw": f"{job.job_id}.{step.name}", "jobname": step.command,
        "account": job.request.account, "alloccpus": str(sum(job.cpus.get(node, 0) for node in nodes)),
        "state": step.state, "exitcode": "" if step.was_lost else code_pair(step.status if step.end else 0),
        "nodelist": hostlist.compress(nodes),
        "nnodes": str(len(nodes)), "allocnodes": str(len(nodes)), "start": timefmt.moment(step.start),
        "end": timefmt.moment(step.end), "submit": timefmt.moment(step.start),
        "elapsed": timefmt.duration(end - step.start), "elapsedraw": str(int(end - step.start)), "ntasks": str(tasks),
        "cluster": context.life.spec.name,
    }  # fmt: skip
    values["ncpus"] = values["reqcpus"] = values["alloccpus"]
    return values.get(name, "")


def _table(given: Arguments, columns: list[tuple[str, int]], rows: Iterable[list[str]]) -> str:
    titles = [_WIDTHS[name][0] for name, _ in columns]
    if "parsable2" in given or "parsable" in given:
        delimiter = given.get("delimiter", "|")
        end = "" if "parsable2" in given else delimiter
        lines = [] if "noheader" in given else [delimiter.join(titles) + end]
        lines += [delimiter.join(row) + end for row in rows]
        return "".join(f"{line}\n" for line in lines)

    def line(cells: list[str]) -> str:
        return "".join(_cell(cell, width) + " " for cell, (_, width) in zip(cells, columns, strict=True))

    lines = []
    if "noheader" not in given:
        lines = [line(titles), line(["-" * abs(width) for _, width in columns])]
    return "".join(f"{text}\n" for text in [*lines, *(line(row) for row in rows)])


def _cell(text: str, width: int) -> str:
    size = abs(width)
    if len(text) > size:
        return text[: size - 1] + "+"
    return text.ljust(size) if width < 0 else text.rjust(size)
