"""The environment variables that Slurm gives to batch scripts and tasks."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake.model import Job, Step, StepNode
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.cluster.fake.users import user_name

MARKER = "RLAUNCH_FAKE_STEP"
"""Every process of a job carries ``<cluster id>/<job>.<run>.<step>.<node>`` under this name."""

_OWNED = (
    "SLURM_RESTART_COUNT",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_STEPID",
    "SLURM_GPUS_ON_NODE",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_JOB_COMMENT",
    "SLURM_OPEN_MODE",
    "SLURM_EXPORT_ENV",
    "CUDA_VISIBLE_DEVICES",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_MIN",
    "SLURM_ARRAY_TASK_MAX",
    "SLURM_ARRAY_TASK_STEP",
)


_YEAR_S = 365 * 86400


def counts(values: Sequence[int]) -> str:
    """``2(x3),1``: equal neighbours folded, as in SLURM_TASKS_PER_NODE."""
    parts: list[tuple[int, int]] = []
    for value in values:
        if parts and parts[-1][0] == value:
            parts[-1] = (value, parts[-1][1] + 1)
        else:
            parts.append((value, 1))
    return ",".join(f"{value}(x{times})" if times > 1 else str(value) for value, times in parts)


def job_variables(spec: FakeSpec, job: Job) -> dict[str, str]:
    """What the batch script and every task of the job's run have in common."""
    request = job.request
    nodelist = hostlist.compress(job.nodes)
    values = {
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOBID": str(job.job_id),
        "SLURM_JOB_NAME": request.name,
        "SLURM_JOB_NODELIST": nodelist,
        "SLURM_NODELIST": nodelist,
        "SLURM_NNODES": str(len(job.nodes)),
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_CPUS_PER_NODE": counts([job.cpus[name] for name in job.nodes]),
        "SLURM_TASKS_PER_NODE": counts(request.tasks_on(len(job.nodes))),
        "SLURM_JOB_PARTITION": request.partition,
        "SLURM_JOB_QOS": request.qos,
        "SLURM_JOB_ACCOUNT": request.account,
        "SLURM_JOB_UID": str(request.uid),
        "SLURM_JOB_USER": user_name(request.uid),
        "SLURM_JOB_GID": str(request.gid),
        "SLURM_CLUSTER_NAME": spec.name,
        "SLURM_SUBMIT_DIR": request.cwd,
        "SLURM_SUBMIT_HOST": "localhost",
        "SLURM_WORKING_CLUSTER": f"{spec.name}:localhost:6817:9728:109",
    }
    if spec.like != "22.05":
        values["SLURM_JOB_START_TIME"] = str(int(job.start))
        values["SLURM_JOB_END_TIME"] = str(int(job.end or job.start + _YEAR_S))
    if job.array is not None:
        values |= {
            "SLURM_ARRAY_JOB_ID": str(job.array.array_id),
            "SLURM_ARRAY_TASK_ID": str(job.array.index),
            "SLURM_ARRAY_TASK_COUNT": str(job.array.count),
            "SLURM_ARRAY_TASK_MIN": str(job.array.low),
            "SLURM_ARRAY_TASK_MAX": str(job.array.high),
            "SLURM_ARRAY_TASK_STEP": str(job.array.step),
        }
    if job.restarts:
        values["SLURM_RESTART_COUNT"] = str(job.restarts)
    if request.num_tasks is not None or request.tasks_per_node is not None:
        values["SLURM_NTASKS"] = values["SLURM_NPROCS"] = str(sum(request.tasks_on(len(job.nodes))))
    if request.tasks_per_node is not None:
        values["SLURM_NTASKS_PER_NODE"] = str(request.tasks_per_node)
    if request.cpus_per_task_given:
        values["SLURM_CPUS_PER_TASK"] = str(request.cpus_per_task)
    if request.memory_mb:
        values["SLURM_MEM_PER_NODE"] = str(request.memory_mb)
    if job.comment:
        values["SLURM_JOB_COMMENT"] = job.comment
    return values


def node_variables(job: Job, node: str, index: int) -> dict[str, str]:
    """What differs from node to node."""
    values = {
        "SLURMD_NODENAME": node,
        "SLURM_NODEID": str(index),
        "SLURM_CPUS_ON_NODE": str(job.cpus[node]),
    }
    if job.request.gpus:
        listed = ",".join(str(number) for number in job.gpus[node])
        values |= {
            "CUDA_VISIBLE_DEVICES": listed,
            "SLURM_JOB_GPUS": listed,
            "SLURM_GPUS_ON_NODE": str(job.request.gpus),
        }
    return values


def batch_environment(spec: FakeSpec, job: Job, bin_dir: str) -> dict[str, str]:
    """The whole environment of the batch script: the submitter's, then Slurm's."""
    values = base(job.request.environment)
    if bin_dir not in values.get("PATH", "").split(":"):
        # Slurm's commands are on every node's PATH, whatever the submitter exported.
        values["PATH"] = f"{bin_dir}:{values.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    values |= job_variables(spec, job) | node_variables(job, job.batch_host, 0)
    if job.request.append_given:
        # srun inside takes over how sbatch was told to open its files.
        values["SLURM_OPEN_MODE"] = "a" if job.request.append else "t"
    if job.request.export:
        values["SLURM_EXPORT_ENV"] = job.request.export
    return values | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "ENVIRONMENT": "BATCH"}


def task_environment(
    spec: FakeSpec, job: Job, step: Step, place: StepNode, local: int, exported: Sequence[str]
) -> dict[str, str]:
    """The whole environment of one task: srun's own, then Slurm's."""
    names = [node.node for node in step.nodes]
    index = names.index(place.node)
    total = sum(node.num_tasks for node in step.nodes)
    values = base(exported) | job_variables(spec, job) | node_variables(job, place.node, index)
    per_node = counts([node.num_tasks for node in step.nodes])
    return values | {
        "SLURM_STEP_ID": step.name,
        "SLURM_STEPID": step.name,
        "SLURM_STEP_NODELIST": hostlist.compress(names),
        "SLURM_STEP_NUM_NODES": str(len(names)),
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_TASKS_PER_NODE": per_node,
        "SLURM_NNODES": str(len(names)),
        "SLURM_NTASKS": str(total),
        "SLURM_NPROCS": str(total),
        "SLURM_PROCID": str(place.first_rank + local),
        "SLURM_LOCALID": str(local),
        "SLURM_GTIDS": ",".join(str(place.first_rank + number) for number in range(place.num_tasks)),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_TOPOLOGY_ADDR": place.node,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
    }


def base(exported: Sequence[str]) -> dict[str, str]:
    """``NAME=value`` pairs as a mapping, without what Slurm sets itself, so that no outer job shines through."""
    pairs = (pair.partition("=") for pair in exported)
    return {name: value for name, _, value in pairs if name not in _OWNED}
