"""sbatch: from a script and its options to a queued job."""

from __future__ import annotations

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake import arrays, dependency, timefmt
from resilient_launch.cluster.fake.admission import can_ever_run, foresee
from resilient_launch.cluster.fake.commands import Arguments, Call, CommandError, Context, Reply, read_arguments
from resilient_launch.cluster.fake.commands.request import OPTIONS, build_request
from resilient_launch.cluster.fake.model import JobRequest
from resilient_launch.cluster.fake.options import OptionError, parse, script_words

_FAILED = "sbatch: error: Batch job submission failed: "
_BAD_OPTION = 255
_INHERITED = {
    "account": "SBATCH_ACCOUNT",
    "constraint": "SBATCH_CONSTRAINT",
    "error": "SBATCH_ERROR",
    "exclusive": "SBATCH_EXCLUSIVE",
    "export": "SBATCH_EXPORT",
    "gpus": "SBATCH_GPUS",
    "gpus-per-node": "SBATCH_GPUS_PER_NODE",
    "gres": "SBATCH_GRES",
    "input": "SBATCH_INPUT",
    "job-name": "SBATCH_JOB_NAME",
    "mem": "SBATCH_MEM_PER_NODE",
    "mem-per-cpu": "SBATCH_MEM_PER_CPU",
    "no-kill": "SBATCH_NO_KILL",
    "no-requeue": "SBATCH_NO_REQUEUE",
    "open-mode": "SBATCH_OPEN_MODE",
    "output": "SBATCH_OUTPUT",
    "partition": "SBATCH_PARTITION",
    "qos": "SBATCH_QOS",
    "requeue": "SBATCH_REQUEUE",
    "signal": "SBATCH_SIGNAL",
    "time": "SBATCH_TIMELIMIT",
    "wait": "SBATCH_WAIT",
}


def run(context: Context, call: Call) -> Reply:
    """Submit a job, or say in Slurm's words why not."""
    given = read_arguments("sbatch", call.arguments, OPTIONS, permute=False, code=_BAD_OPTION)
    if "help" in given or "usage" in given:
        return Reply(out="Usage: sbatch [OPTIONS(0)...] [ : [OPTIONS(N)...]] script(0) [args(0)...]\n")
    if "version" in given:
        return Reply(out=f"slurm-wlm {context.life.spec.slurm_version}\n")
    if "wrap" in given and given.words:
        raise CommandError("sbatch: error: Script arguments not permitted with --wrap option\n")
    if "wrap" in given:
        script, source = f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{given.get('wrap')}\n", "wrap"
    elif call.script is None:
        return Reply(read=given.words[0] if given.words else "-")
    else:
        script, source = call.script, given.words[0] if given.words else "/dev/stdin"
        _check_script(script)
    options = _merge(script, source, given, call)
    request = build_request(context.life.spec, call, options, script=script, source=source, now=context.now)
    spec = context.life.spec
    # 22.05 lets such a job wait for more nodes to be added.
    is_too_wide = request.min_nodes > spec.num_nodes and spec.like == "22.05"
    if not is_too_wide and not can_ever_run(spec, request):
        told = ""
        if request.memory_mb > context.life.spec.memory_mb:
            told = "sbatch: error: Memory specification can not be satisfied\n"
        raise CommandError(f"{told}{_FAILED}Requested node configuration is not available\n")
    if "test-only" in options:
        return _test_only(context, request)
    job_id = _submit(context, request, options)
    out = f"{job_id}\n" if "parsable" in options else f"Submitted batch job {job_id}\n"
    if "quiet" in options and "parsable" not in options:
        out = ""
    return Reply(out=out, wait=f"job:{job_id}" if "wait" in options else "")


def _submit(context: Context, request: JobRequest, options: Arguments) -> int:
    life = context.life
    try:
        waits_for = dependency.read(options.get("dependency"), life.find, must_exist=life.spec.like != "22.05")
    except ValueError:
        raise CommandError(_FAILED + "Job dependency problem\n") from None
    if not options.get("array"):
        return life.submit(request, context.now, dependency=waits_for).job_id
    try:
        numbers, limit = arrays.read(options.get("array"))
    except ValueError:
        raise CommandError(_FAILED + "Invalid job array specification\n") from None
    return life.submit_array(request, numbers, limit, context.now, dependency=waits_for)


def _check_script(script: str) -> None:
    problem = ""
    if not script:
        problem = "Batch script is empty!\n"
    elif not script.strip():
        problem = "Batch script contains only whitespace!\n"
    elif not script.startswith("#!"):
        problem = (
            "This does not look like a batch script.  The first\n"
            "line must start with #! followed by the path to an interpreter.\n"
            "For instance: #!/bin/sh\n"
        )
    elif "\0" in script:
        problem = "The Slurm controller does not allow scripts that\ncontain a NULL character '\\0'.\n"
    elif "\r\n" in script:
        problem = "Batch script contains DOS line breaks (\\r\\n)\ninstead of expected UNIX line breaks (\\n).\n"
    if problem:
        raise CommandError("".join(f"sbatch: error: {line}\n" for line in problem.splitlines()))


def _merge(script: str, source: str, given: Arguments, call: Call) -> Arguments:
    """The command line wins over the environment's SBATCH_* values, and these over the script's lines."""
    try:
        in_script, _ = parse(script_words(script, source), OPTIONS)
    except OptionError as error:
        if str(error).startswith(f"{source}: line"):
            raise CommandError(f"sbatch: fatal: {error}\n") from None
        raise CommandError(f'sbatch: {error}\nTry "sbatch --help" for more information\n', _BAD_OPTION) from None
    from_environment = {option: call.variable(name) for option, name in _INHERITED.items() if call.variable(name)}
    merged: dict[str, str | None] = {}
    for name, option in [*in_script, *from_environment.items(), *given.values.items()]:
        merged.pop(name, None)
        merged[name] = option
    return Arguments(merged, given.words)


def _test_only(context: Context, request: JobRequest) -> Reply:
    """--test-only: when and where the job would start. Nothing is queued, and no id is used up."""
    foreseen = foresee(context.life, request, context.now)
    if foreseen is None:
        raise CommandError("allocation failure: Requested nodes are busy\n")
    start, nodes = foreseen
    names = nodes or context.life.spec.node_names[: request.min_nodes]
    cpus = sum(request.tasks_on(len(names))) * request.cpus_per_task
    text = (
        f"sbatch: Job {context.life.next_id} to start at {timefmt.moment(start)} using {cpus} processors "
        f"on nodes {hostlist.compress(names)} in partition {request.partition}\n"
    )
    return Reply(err=text)
