"""Nodes that fail, are drained, and come back."""

from __future__ import annotations

from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job, JobState, Node
from resilient_launch.cluster.fake.orders import Order, place_key


def fail_node(life: Lifecycle, node: Node, now: float, *, network_only: bool) -> None:
    """The node goes silent. Its processes die with it, or (``network_only``) go on where nobody reaches them."""
    node.down, node.isolated, node.reason, node.since = True, network_only, "Not responding", now
    life.database.save_node(node)
    life.must_schedule = True
    for job in list(life.jobs.values()):
        if node.name not in job.nodes or not (job.is_running or job.completing):
            continue
        for step in job.active_steps():
            for place in step.nodes:
                if place.node == node.name and not place.done:
                    place.lost = True
                    if not network_only:
                        life.orders.add(Order(do="kill", key=place_key(job, step, place)))
        if job.is_running and job.request.no_kill and job.batch_host != node.name:
            job.nodes.remove(node.name)
        elif job.is_running:
            _node_failed(life, job, now)
        for step in list(job.active_steps()):
            life.step_over(job, step, now)
        life.settle(job, now)
        life.touch(job)


def _node_failed(life: Lifecycle, job: Job, now: float) -> None:
    job.run_state, job.run_end = JobState.NODE_FAIL, now
    if job.request.requeue:
        life.back_to_queue(job)
        life.count_requeue(job)
    else:
        job.state, job.reason = JobState.NODE_FAIL, "NodeDown"
    life.terminate(job, now, " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS")


def drain_node(life: Lifecycle, node: Node, reason: str, now: float) -> None:
    """No new job starts there; those that run go on."""
    node.drained, node.reason, node.since = True, reason, now
    life.database.save_node(node)
    life.must_schedule = True


def resume_node(life: Lifecycle, node: Node) -> None:
    """The node is back; what still ran there from before is killed as it registers."""
    node.down = node.drained = node.isolated = False
    node.reason, node.since = "", 0.0
    life.database.save_node(node)
    life.must_schedule = True
    life.orders.add(Order(do="purge", key=node.name))
