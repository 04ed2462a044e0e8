"""srun inside an allocation: one step, its tasks spread over the job's nodes."""

from __future__ import annotations

from resilient_launch.cluster.fake.commands import (
    Arguments,
    Call,
    CommandError,
    Context,
    Reply,
    expand_nodes,
    read_arguments,
)
from resilient_launch.cluster.fake.launch import StepIO
from resilient_launch.cluster.fake.lifecycle import ALREADY_DONE, NO_SUCH_JOB
from resilient_launch.cluster.fake.model import Job, Step, StepNode
from resilient_launch.cluster.fake.options import table

OPTIONS = table(
    "account:A= accel-bind= acctg-freq= bb= bbf= bcast=? begin:b= chdir:D= cluster-constraint= comment= "
    "compress=? constraint:C= container= contiguous core-spec:S= cores-per-socket= cpu-bind= cpu-freq= "
    "cpus-per-gpu= cpus-per-task:c= deadline= delay-boot= dependency:d= disable-status:X distribution:m= epilog= "
    "error:e= exact exclude:x= exclusive=? export= extra-node-info:B= gpu-bind= gpu-freq= gpus:G= gpus-per-node= "
    "gpus-per-socket= gpus-per-task= gres= gres-flags= help:h hint= hold:H immediate:I=? input:i= interactive "
    "job-name:J= jobid= kill-on-bad-exit:K=? label:l licenses:L= mail-type= mail-user= mcs-label= mem= mem-bind= "
    "mem-per-cpu= mem-per-gpu= mincpus= mpi= msg-timeout= multi-prog network= nice=? no-allocate:Z no-kill:k=? "
    "nodefile= nodelist:w= nodes:N= ntasks:n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node= "
    "ntasks-per-socket= open-mode= output:o= overcommit:O overlap oversubscribe:s partition:p= power= "
    "preserve-env:E priority= profile= prolog= propagate=? pty=? qos:q= quiet:Q quit-on-interrupt reboot "
    "relative:r= reservation= resv-ports=? send-libs=? signal= slurmd-debug= sockets-per-node= spread-job "
    "switches= task-epilog= task-prolog= test-only thread-spec= threads:T= threads-per-core= time:t= time-min= "
    "tmp= tres-per-task= unbuffered:u usage use-min-nodes verbose:v version:V wait:W= wckey= whole x11=?"
)
_INHERITED = {
    "SLURM_OPEN_MODE": "open-mode",
    "SLURM_EXPORT_ENV": "export",
    "SLURM_KILL_BAD_EXIT": "kill-on-bad-exit",
    "SLURM_LABELIO": "label",
}
_UNSUPPORTED = ("multi-prog", "pty", "no-allocate")


def run(context: Context, call: Call) -> Reply:
    """Create a step in the caller's job; the reply waits for its end."""
    told = read_arguments("srun", call.arguments, OPTIONS, permute=False, code=255)
    inherited = {option: call.variable(name) for name, option in _INHERITED.items() if call.variable(name)}
    given = Arguments({**inherited, **told.values}, told.words)
    if "version" in given:
        return Reply(out=f"slurm-wlm {context.life.spec.slurm_version}\n")
    if not given.words:
        raise CommandError("srun: fatal: No command given to execute.\n")
    for name in _UNSUPPORTED:
        if name in given:
            raise CommandError(f"srun: error: --{name} is not offered by the fake cluster\n")
    text = given.get("jobid") or call.variable("SLURM_JOB_ID")
    if not text:
        raise CommandError(
            "srun: error: Unable to allocate resources: the fake cluster runs srun inside batch jobs only, use sbatch\n"
        )
    job = context.life.jobs.get(int(text)) if text.isdigit() else None
    problem = NO_SUCH_JOB if job is None else "" if job.is_running and not job.completing else ALREADY_DONE
    if job is None or problem:
        raise CommandError(f"srun: error: Unable to create step for job {text}: {problem}\n")
    names = _nodes(given, job)
    tasks = _tasks(given, job, names)
    first_rank, places = 0, []
    for name, count in zip(names, tasks, strict=True):
        if count:
            places.append(StepNode(node=name, num_tasks=count, first_rank=first_rank))
            first_rank += count
    step = Step(
        name=str(job.next_step),
        command=given.get("job-name", given.words[0].rsplit("/", 1)[-1]),
        nodes=places,
        start=context.now,
        kill_on_bad_exit="kill-on-bad-exit" in given and given.get("kill-on-bad-exit", "1") != "0",
    )
    job.next_step += 1
    cwd = given.get("chdir") or call.cwd
    context.launcher.write_step(job, step, given.words, _exported(given, call), cwd, _files(given))
    context.life.add_step(job, step)
    return Reply(wait=f"step:{job.run_key}.{step.name}")


def _number(given: Arguments, name: str) -> int | None:
    if name not in given:
        return None
    if not given.get(name).isdigit() or int(given.get(name)) < 1:
        raise CommandError(f'srun: error: Invalid numeric value "{given.get(name)}" for --{name}.\n')
    return int(given.get(name))


def _nodes(given: Arguments, job: Job) -> list[str]:
    """The nodes of the step, in the job's order: those named, or the first of the job's."""
    excluded = set(expand_nodes("srun", given.get("exclude")))
    names = [name for name in job.nodes if name not in excluded]
    wanted = expand_nodes("srun", given.get("nodelist"))
    if not set(wanted) <= set(names):
        raise CommandError(
            f"srun: error: Unable to create step for job {job.job_id}: Requested node configuration is not available\n"
        )
    relative = int(given.get("relative", "0")) if given.get("relative", "0").isdigit() else 0
    names = names[relative:]
    text = given.get("nodes") or (str(len(wanted)) if wanted else "")
    if not text:
        num_tasks = _number(given, "ntasks")
        return names[:num_tasks] if num_tasks else names
    low, _, high = text.partition("-")
    if not low.isdigit() or (high and not high.isdigit()) or int(low) < 1:
        raise CommandError(f'srun: error: "{text}" is not a valid node count\n', 255)
    if int(low) > len(names):
        raise CommandError(
            f"srun: error: Only allocated {len(names)} nodes asked for {low}\n"
            if not wanted
            else "srun: error: Requested node configuration is not available\n"
        )
    others = [name for name in names if name not in wanted]
    chosen = {*wanted, *others[: max(0, min(int(high or low), len(names)) - len(wanted))]}
    return [name for name in names if name in chosen]


def _tasks(given: Arguments, job: Job, names: list[str]) -> list[int]:
    """Tasks per node: what srun was told, else what the job was."""
    per_node = _number(given, "ntasks-per-node")
    total = _number(given, "ntasks")
    if per_node is None and total is None:
        per_node, total = job.request.tasks_per_node, job.request.num_tasks
    if total is None:
        return [per_node or 1] * len(names)
    if total < len(names):
        return [1] * total + [0] * (len(names) - total)
    share, rest = divmod(total, len(names))
    return [share + (index < rest) for index in range(len(names))]


def _files(given: Arguments) -> StepIO:
    def pattern(name: str) -> str | None:
        value = given.get(name)
        if not value or value == "all":
            return None
        return "/dev/null" if value == "none" else value

    return StepIO(
        stdin=pattern("input"),
        stdout=pattern("output"),
        stderr=pattern("error"),
        append=given.get("open-mode", "truncate").startswith("a"),
        label="label" in given,
    )


def _exported(given: Arguments, call: Call) -> list[str]:
    words = [word for word in given.get("export", "ALL").split(",") if word]
    if "ALL" in words:
        return [*call.environment, *(word for word in words if "=" in word)]
    fixed = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG")
    kept = []
    for pair in call.environment:
        name = pair.partition("=")[0]
        if name in words or name in fixed or name.startswith("SLURM"):
            kept.append(pair)
    return [*kept, *(word for word in words if "=" in word)]
