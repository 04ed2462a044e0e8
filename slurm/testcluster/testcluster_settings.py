"""What a one-machine Slurm looks like, and its slurm.conf, gres.conf and cgroup.conf as text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from testcluster_cgroups import IDS_PER_CLUSTER


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """What the test cluster looks like; times are whole seconds.

    Partition ``low`` (the default one) is preempted by requeue, after ``grace_s``, by partition ``high``; ``nograce``
    at once.
    ``cred_expire_s`` is what a requeued job waits before it may start again; Slurm 22.05 ignores values below 10.
    ``accounting`` starts a database and slurmdbd, so that sacct answers. With ``cgroups`` a signal to a step reaches
    its tasks alone (proctrack/cgroup), else everything below them. ``max_batch_requeue`` is Slurm's MaxBatchRequeue,
    which 22.05 does not let one choose.
    """

    num_nodes: int = 4
    cpus: int = 4
    gpus: int = 2
    memory_mb: int = 8192
    grace_s: int = 10
    kill_wait_s: int = 5
    min_job_age_s: int = 300
    cred_expire_s: int = 10
    max_batch_requeue: int = 5
    send_user_signal: bool = False
    accounting: bool = False
    cgroups: bool = False


def slurm_conf(
    spec: ClusterSpec,
    *,
    version: tuple[int, ...],
    directory: Path,
    hostname: str,
    ctld_port: int,
    node_ports: list[int],
    dbd_port: int | None = None,
    plugin_dir: Path | None = None,
) -> str:
    """slurm.conf. Addresses are numeric, so that neither the host's name nor a node's has to resolve."""
    nodes = "\n".join(
        f"NodeName=n{index} NodeHostname={hostname} NodeAddr=127.0.0.1 Port={port} CPUs={spec.cpus}"
        f" RealMemory={spec.memory_mb}" + (f" Gres=gpu:{spec.gpus}" if spec.gpus else "")
        for index, port in enumerate(node_ports, start=1)
    )
    user_signal = ""
    if spec.send_user_signal:
        renamed = version >= (23, 2)
        user_signal = f"{'PreemptParameters=' if renamed else 'SlurmctldParameters=preempt_'}send_user_signal"
    accounting = "AccountingStorageType=accounting_storage/none"
    if dbd_port is not None:
        accounting = (
            "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={dbd_port}\nAccountingStoragePass={munge_socket(directory)}"
        )
    first_job_id = f"FirstJobId={ctld_port * IDS_PER_CLUSTER}" if spec.cgroups else ""
    return f"""\
ClusterName=testcluster
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={munge_socket(directory)},cred_expire={spec.cred_expire_s}
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/pid/slurmctld
SlurmdPidFile={directory}/pid/%n
SlurmctldLogFile={directory}/log/slurmctld
SlurmdLogFile={directory}/log/%n
ProctrackType=proctrack/{"cgroup" if spec.cgroups else "linuxproc"}
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
{accounting}
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=64
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{user_signal}
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=2,batch_sched_delay=1
KillWait={spec.kill_wait_s}
MinJobAge={spec.min_job_age_s}
{f"MaxBatchRequeue={spec.max_batch_requeue}" if version >= (23, 11) else ""}
{first_job_id}
ReturnToService=2
MailProg=/bin/true
{f"PluginDir={plugin_dir}" if plugin_dir else ""}
{"GresTypes=gpu" if spec.gpus else ""}
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime={spec.grace_s}
PartitionName=nograce Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime=0
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


def gres_conf(spec: ClusterSpec, *, directory: Path) -> str:
    """gres.conf. The device files are links to /dev/null: Slurm wants character devices, and nothing opens them."""
    if not spec.gpus:
        return ""
    return f"NodeName=n[1-{spec.num_nodes}] Name=gpu File={directory}/gpu/nvidia[0-{spec.gpus - 1}]\n"


def cgroup_conf(spec: ClusterSpec, version: tuple[int, ...]) -> str:
    """cgroup.conf. From 23.11 slurmd wants a cgroup plugin even where nothing uses it; before, the value is unknown."""
    if spec.cgroups:
        return "CgroupPlugin=cgroup/v1\n"
    return "CgroupPlugin=disabled\n" if version >= (23, 11) else ""


def munge_socket(directory: Path) -> Path:
    return directory / "munge.socket"
