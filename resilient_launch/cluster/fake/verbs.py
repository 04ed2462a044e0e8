"""What the facade, and so ``rlaunch fake``, may do to a cluster beyond Slurm's own commands."""

from __future__ import annotations

from typing import Any

from resilient_launch.cluster.fake.commands import Call
from resilient_launch.cluster.fake.environment import MARKER
from resilient_launch.cluster.fake.lifecycle import NO_SUCH_JOB, Lifecycle, NotAllowedError
from resilient_launch.cluster.fake.model import Job


def run(life: Lifecycle, request: dict[str, Any], now: float) -> dict[str, Any]:
    """Carry out one request; the answer is JSON-ready: ``ok``, or ``what`` and ``why`` it was refused."""
    verb = request["verb"]
    try:
        if verb == "hello":
            return {"ok": True, "spec": life.spec.to_dict()}
        if verb == "preempt":
            life.preempt(_running(life, request["job"]), now)
        elif verb == "time_limit":
            job = _running(life, request["job"])
            if job.preempt:
                raise NotAllowedError("it is being preempted, its end is set already")
            job.end = now + request["in_s"]
            life.touch(job)
        elif verb == "fail_node":
            life.fail_node(_node(life, request), now, network_only=request["network_only"])
        elif verb == "resume_node":
            life.resume_node(_node(life, request))
        else:
            raise NotAllowedError("no such verb")
    except NotAllowedError as refusal:
        subject = f"job {request['job']}" if "job" in request else f"node {request.get('node')}"
        return {"ok": False, "what": f"{verb} {subject}", "why": str(refusal)}
    return {"ok": True}


def _running(life: Lifecycle, job_id: int) -> Job:
    job = life.jobs.get(job_id)
    if job is None:
        raise NotAllowedError(NO_SUCH_JOB)
    if not job.is_running:
        raise NotAllowedError(f"it is {job.shown_state}, not RUNNING")
    return job


def _node(life: Lifecycle, request: dict[str, Any]) -> Any:
    node = life.nodes.get(request["node"])
    if node is None:
        raise NotAllowedError(f"the nodes are {', '.join(life.nodes)}")
    return node


def node_of(call: Call) -> str:
    """The node that a command inside a job runs on; empty for one outside."""
    return call.variable(MARKER).rpartition("/")[2].rpartition(".")[2]
