"""What the facade, and so ``rlaunch fake``, may do to a cluster beyond Slurm's own commands."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from resilient_launch.cluster.fake import outages
from resilient_launch.cluster.fake.commands import Call
from resilient_launch.cluster.fake.environment import MARKER
from resilient_launch.cluster.fake.lifecycle import NO_SUCH_JOB, Lifecycle, NotAllowedError
from resilient_launch.cluster.fake.model import Job, JobRequest
from resilient_launch.cluster.fake.render import node_state
from resilient_launch.cluster.fake.reservations import Reservation


def run(life: Lifecycle, request: dict[str, Any], now: float) -> dict[str, Any]:
    """Carry out one request; the answer is JSON-ready: ``ok``, or ``what`` and ``why`` it was refused."""
    verb = request["verb"]
    try:
        if verb == "hello":
            return {"ok": True, "spec": life.spec.to_dict()}
        if verb == "status":
            return {"ok": True, **_status(life, now)}
        if verb == "preempt":
            life.preempt(_running(life, request["job"]), now)
        elif verb == "time_limit":
            job = _running(life, request["job"])
            if job.preempt:
                raise NotAllowedError("it is being preempted, its end is set already")
            job.end = now + request["in_s"]
            life.touch(job)
        elif verb == "fail_node":
            outages.fail_node(life, _node(life, request), now, network_only=request["network_only"])
        elif verb == "resume_node":
            outages.resume_node(life, _node(life, request))
        elif verb == "drain":
            outages.drain_node(life, _node(life, request), request["reason"], now)
        elif verb == "maintenance":
            _maintenance(life, request, now)
        elif verb == "fill":
            return {"ok": True, "jobs": _fill(life, request, now)}
        elif verb == "accounting":
            if life.accounting.mode == "disabled":
                raise NotAllowedError("the cluster was brought up without accounting")
            life.accounting.set(request["mode"], request["delay_s"])
        else:
            raise NotAllowedError("no such verb")
    except NotAllowedError as refusal:
        subject = next((f" {name} {request[name]}" for name in ("job", "node", "partition") if name in request), "")
        return {"ok": False, "what": f"{verb}{subject}", "why": str(refusal)}
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


def _maintenance(life: Lifecycle, request: dict[str, Any], now: float) -> None:
    nodes = [_node(life, {"node": name}).name for name in request["nodes"] or life.nodes]
    start = now + request["in_s"]
    name = request["name"]
    if life.reservations.get(name) is not None:
        raise NotAllowedError(f"there is a reservation {name} already")
    life.reservations.add(Reservation(name=name, start=start, end=start + request["for_s"], nodes=tuple(nodes)))
    life.must_schedule = True


def _fill(life: Lifecycle, request: dict[str, Any], now: float) -> list[int]:
    """Jobs of whole nodes that only wait, so that others must."""
    partition = request["partition"] or life.spec.partitions[0].name
    if life.spec.partition(partition) is None:
        raise NotAllowedError(f"the partitions are {', '.join(each.name for each in life.spec.partitions)}")
    script = f"#!/bin/sh\nexec sleep {request['for_s']}\n"
    submitted = [
        life.submit(
            JobRequest(
                name="fill",
                script=script,
                partition=partition,
                exclusive=True,
                nodes_given=True,
                uid=os.getuid(),
                gid=os.getgid(),
                environment=(f"PATH={os.defpath}",),
                stdout="/dev/null",
            ),
            now,
        )
        for _ in range(request["num_jobs"] or len(life.nodes))
    ]
    return [job.job_id for job in submitted]


def _status(life: Lifecycle, now: float) -> dict[str, Any]:
    jobs: dict[str, int] = {}
    for job in life.jobs.values():
        jobs[job.shown_state] = jobs.get(job.shown_state, 0) + 1
    nodes = [
        {"name": node.name, "state": node_state(life, node, now), "reason": node.reason} for node in life.nodes.values()
    ]
    return {
        "spec": life.spec.to_dict(),
        "nodes": nodes,
        "jobs": jobs,
        "reservations": [asdict(each) for each in life.reservations],
        "accounting": life.accounting.mode,
        "accounting_delay_s": life.accounting.delay_s,
    }


def node_of(call: Call) -> str:
    """The node that a command inside a job runs on; empty for one outside."""
    return call.variable(MARKER).rpartition("/")[2].rpartition(".")[2]
