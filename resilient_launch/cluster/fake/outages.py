"""Nodes that fail, are drained, and come back."""

from __future__ import annotations

from collections.abc import Callable

from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job, JobState, Node, Step, StepNode
from resilient_launch.cluster.fake.orders import Order, place_key

NODE_FAILURE = " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"


def fail_node(life: Lifecycle, node: Node, now: float, *, network_only: bool) -> None:
    """The node goes silent. Its processes die with it, or (``network_only``) go on where nobody reaches them."""
    node.isolated, reach = network_only, _nobody if network_only else _kill
    _lose(life, node, now, "Not responding", reach)


def set_down(life: Lifecycle, node: Node, reason: str, now: float) -> None:
    """An administrator's word: jobs lose the node at once, and what ran there has KillWait to end."""
    _lose(life, node, now, reason, _end)


def _nobody(life: Lifecycle, job: Job, step: Step, place: StepNode, now: float) -> None:
    """Nothing reaches the node."""


def _kill(life: Lifecycle, job: Job, step: Step, place: StepNode, now: float) -> None:
    life.orders.add(Order(do="kill", key=place_key(job, step, place)))


def _end(life: Lifecycle, job: Job, step: Step, place: StepNode, now: float) -> None:
    key = place_key(job, step, place)
    if place is step.nodes[0]:
        life.orders.say(job, step, NODE_FAILURE)
    life.orders.end_place(key)
    life.doomed[key] = now + life.spec.kill_wait_s


def _lose(
    life: Lifecycle,
    node: Node,
    now: float,
    reason: str,
    reach: Callable[[Lifecycle, Job, Step, StepNode, float], None],
) -> None:
    node.down, node.reason, node.since = True, reason, now
    life.database.save_node(node)
    life.must_schedule = True
    for job in list(life.jobs.values()):
        if node.name not in job.nodes or not (job.is_running or job.completing):
            continue
        # Without the node that runs its batch script it has nobody to go on for, if only that node can be reached.
        goes_on = job.is_running and job.request.no_kill and len(job.nodes) > 1
        goes_on &= job.batch_host != node.name or reach is not _nobody
        for step in job.active_steps():
            for place in step.nodes:
                if place.node != node.name or place.done:
                    continue
                # What a job goes on without gets no time to end.
                (_kill if goes_on and reach is _end else reach)(life, job, step, place, now)
                place.lost = not (goes_on and step.is_batch)
        if goes_on:
            job.nodes.remove(node.name)
        elif job.is_running:
            _node_failed(life, job, now)
        for step in list(job.active_steps()):
            life.step_over(job, step, now)
        life.settle(job, now)
        life.touch(job)


def _node_failed(life: Lifecycle, job: Job, now: float) -> None:
    job.run_state, job.run_end = JobState.NODE_FAIL, now
    if life.spec.like != "22.05":
        job.exit_status = 1 << 8
    if job.request.requeue:
        life.back_to_queue(job)
    else:
        job.state, job.reason = JobState.NODE_FAIL, "NodeDown"
    life.terminate(job, now, NODE_FAILURE)


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
