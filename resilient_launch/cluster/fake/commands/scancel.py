"""scancel: end jobs, or signal them."""

from __future__ import annotations

from resilient_launch.cluster.fake.commands import (
    Arguments,
    Call,
    CommandError,
    Context,
    Reply,
    read_arguments,
)
from resilient_launch.cluster.fake.commands.request import signal_number
from resilient_launch.cluster.fake.lifecycle import ALREADY_DONE, NO_SUCH_JOB, NOT_NOW, NotAllowedError
from resilient_launch.cluster.fake.model import Job
from resilient_launch.cluster.fake.options import table
from resilient_launch.cluster.fake.users import user_name

OPTIONS = table(
    "account:A= batch:b ctld clusters:M= full:f help hurry:H interactive:i me name:n= jobname= nodelist:w= "
    "partition:p= quiet:Q qos:q= reservation:R= sibling= signal:s= state:t= user:u= verbose:v version:V wckey= "
    "usage"
)
_KILL = 9
_FILTERS = ("account", "me", "name", "jobname", "nodelist", "partition", "qos", "state", "user")


def run(context: Context, call: Call) -> Reply:
    """Cancel or signal every job named or matched."""
    given = read_arguments("scancel", call.arguments, OPTIONS)
    signum = 0
    if "signal" in given:
        try:
            signum = signal_number(given.get("signal"))
        except ValueError:
            raise CommandError(f"Unknown job signal: {given.get('signal')}\n") from None
    filtered = any(name in given for name in _FILTERS)
    if not given.words and not filtered:
        raise CommandError("scancel: error: No job identification provided\n")
    reply = Reply()
    for word in given.words:
        text, _, step = word.partition(".")
        if not text.split("_")[0].isdigit():
            raise CommandError(f"scancel: error: Invalid job id {word}\n")
        jobs = [job for job in context.life.find(text) if not filtered or _matches(given, call, job)]
        if filtered and not jobs:
            continue
        problems = [_act(context, call, given, job, step, signum) for job in jobs]
        # Of an array it is enough that one task could be reached.
        problem = NO_SUCH_JOB if not jobs else "" if "" in problems else problems[0]
        is_gone = problem in (ALREADY_DONE, NO_SUCH_JOB)
        if problem and (not is_gone or "verbose" in given):
            reply.err += f"scancel: error: Kill job error on job id {word}: {problem}\n"
        # To end what has ended is no failure, to signal it is.
        if problem and not (is_gone and signum in (0, _KILL)):
            reply.code = 1
    if not given.words:
        for job in list(context.life.jobs.values()):
            if not job.is_over and _matches(given, call, job):
                _act(context, call, given, job, "", signum)
    return reply


def _matches(given: Arguments, call: Call, job: Job) -> bool:
    request = job.request
    wanted = {
        "account": request.account,
        "name": request.name,
        "jobname": request.name,
        "partition": request.partition,
        "qos": request.qos,
    }
    if any(name in given and given.get(name) != value for name, value in wanted.items()):
        return False
    if "me" in given and request.uid != call.uid:
        return False
    if "user" in given and given.get("user") not in (user_name(request.uid), str(request.uid)):
        return False
    return "state" not in given or given.get("state").upper() in (job.shown_state, job.shown_compact)


def _act(context: Context, call: Call, given: Arguments, job: Job, step_name: str, signum: int) -> str:
    """Do it; returns Slurm's words when it can't be done."""
    life = context.life
    if job.is_over or (job.completing and not job.is_pending):
        return ALREADY_DONE
    if step_name:
        step = job.step(step_name)
        if step is None or step.end is not None:
            return NO_SUCH_JOB
        life.orders.signal_step(job, step, signum or _KILL)
        life.touch(job)
        return ""
    batch, full = "batch" in given, "full" in given
    if signum in (0, _KILL) and not batch:
        try:
            life.cancel(job, call.uid, context.now)
        except NotAllowedError as refusal:
            return str(refusal)
        return ""
    if not job.is_running:
        return NOT_NOW
    if batch or full:
        life.orders.signal_batch(job, signum or _KILL, full=full)
    else:
        life.orders.signal_steps(job, signum)
    life.touch(job)
    return ""
