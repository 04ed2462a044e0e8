"""scontrol's records: field names, order and spelling as Slurm's."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake import timefmt
from resilient_launch.cluster.fake.filenames import Names
from resilient_launch.cluster.fake.lifecycle import Lifecycle
from resilient_launch.cluster.fake.model import Job, JobRequest, Node, code_pair
from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec
from resilient_launch.cluster.fake.users import group_name, user_name


def num_cpus(job: Job) -> int:
    """CPUs that the job has, or asks for while it waits."""
    if job.cpus:
        return sum(job.cpus.values())
    return sum(job.request.tasks_on(job.request.min_nodes)) * job.request.cpus_per_task


def tres(job: Job) -> str:
    """``cpu=4,mem=2G,node=2,billing=4,gres/gpu=16``."""
    num_nodes = len(job.nodes) or job.request.min_nodes
    cpus = num_cpus(job)
    parts = [f"cpu={cpus}"]
    memory_mb = job.request.memory_mb * num_nodes + job.request.memory_per_cpu_mb * cpus
    if memory_mb:
        parts.append(f"mem={memory(memory_mb)}")
    parts += [f"node={num_nodes}", f"billing={cpus}"]
    if job.request.gpus:
        parts.append(f"gres/gpu={job.request.gpus * num_nodes}")
    return ",".join(parts)


def memory(size_mb: int) -> str:
    """``2G`` where it is whole, else ``2500M``; a plain 0 for none."""
    if not size_mb:
        return "0"
    return f"{size_mb // 1024}G" if size_mb % 1024 == 0 else f"{size_mb}M"


def job_record(spec: FakeSpec, job: Job, now: float, *, details: bool = False) -> list[str]:
    """``scontrol show job``: one string a line."""
    request = job.request
    waits = job.is_pending and not job.completing
    limit = timefmt.duration(job.time_limit_s)
    ended = job.run_end if job.is_over or job.completing else 0.0
    run_s = 0.0 if waits else (ended or now) - job.start
    start = job.start or (job.begin if job.reason == "BeginTime" else 0.0)
    end = job.end
    if waits and start and job.time_limit_s is not None:
        end = start + job.time_limit_s
    partition = spec.partition(request.partition)
    names = Names.of(job, job.batch_host, spec)
    stdout = names.path(request.stdout, request.cwd)
    lines = [
        f"JobId={job.job_id}{_array(job)} JobName={request.name}",
        f"UserId={user_name(request.uid)}({request.uid}) GroupId={group_name(request.gid)}({request.gid}) "
        "MCS_label=N/A",
        f"Priority={job.priority} Nice=0 Account={request.account} QOS={request.qos}",
        f"JobState={job.shown_state} Reason={(job.description or job.reason).replace(' ', '_')} "
        f"Dependency={job.dependency or '(null)'}",
        f"Requeue={int(request.requeue)} Restarts={job.restarts} BatchFlag=1 Reboot=0 "
        f"ExitCode={code_pair(job.exit_status)}",
    ]
    if details:
        lines.append(f"DerivedExitCode={code_pair(job.derived_status)}")
    lines += [
        f"RunTime={timefmt.duration(run_s)} TimeLimit={limit} TimeMin=N/A",
        f"SubmitTime={timefmt.moment(job.submit)} EligibleTime={timefmt.moment(job.eligible)}",
        f"AccrueTime={timefmt.moment(job.eligible if job.eligible <= now else 0)}",
        f"StartTime={timefmt.moment(start)} EndTime={timefmt.moment(end)} Deadline=N/A",
    ]
    if job.start and partition and partition.preempt_mode != "off":
        preempted = timefmt.moment(job.preempt) if job.preempt else "None"
        lines.append(f"PreemptEligibleTime={timefmt.moment(job.start)} PreemptTime={preempted}")
    lines += [
        f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={timefmt.moment(job.start or job.submit)} Scheduler=Main",
        f"Partition={request.partition} AllocNode:Sid=localhost:0",
        f"ReqNodeList={hostlist.compress(request.nodelist) or '(null)'} "
        f"ExcNodeList={hostlist.compress(request.exclude) or '(null)'}",
        f"NodeList={hostlist.compress(job.nodes)}",
    ]
    if job.nodes:
        lines.append(f"BatchHost={job.batch_host}")
    tasks = sum(request.tasks_on(len(job.nodes) or request.min_nodes))
    lines += [
        f"NumNodes={_num_nodes(job)} NumCPUs={num_cpus(job)} NumTasks={tasks} "
        f"CPUs/Task={request.cpus_per_task} ReqB:S:C:T=0:0:*:*",
        f"TRES={tres(job)}",
        f"Socks/Node=* NtasksPerN:B:S:C={request.tasks_per_node or 0}:0:*:* CoreSpec=*",
    ]
    if details and job.nodes:
        lines += _allocation(job)
    lines += [
        f"MinCPUsNode={(request.tasks_per_node or 1) * request.cpus_per_task} {_min_memory(request)} MinTmpDiskNode=0",
        f"Features={request.constraint or '(null)'} DelayBoot=00:00:00",
        f"OverSubscribe={'NO' if request.exclusive else 'OK'} Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={request.command}",
        f"WorkDir={request.cwd}",
    ]
    if job.comment:
        lines.append(f"Comment={job.comment} ")
    lines += [
        f"StdErr={names.path(request.stderr, request.cwd) if request.stderr else stdout}",
        f"StdIn={request.stdin}",
        f"StdOut={stdout}",
        "Power=",
    ]
    if request.gpus:
        lines.append(f"TresPerNode=gres:gpu:{request.gpus}")
    return lines


def _array(job: Job) -> str:
    if job.array is None:
        return ""
    throttle = f" ArrayTaskThrottle={job.array.limit}" if job.array.limit else ""
    return f" ArrayJobId={job.array.array_id} ArrayTaskId={job.array.index}{throttle}"


def _min_memory(request: JobRequest) -> str:
    if request.memory_per_cpu_mb:
        return f"MinMemoryCPU={memory(request.memory_per_cpu_mb)}"
    return f"MinMemoryNode={memory(request.memory_mb)}"


def _num_nodes(job: Job) -> str:
    if job.nodes:
        return str(len(job.nodes))
    low, high = job.request.min_nodes, job.request.max_nodes
    return str(low) if low == high else f"{low}-{high}"


def _allocation(job: Job) -> list[str]:
    lines = [f"JOB_GRES={'gpu:' + str(job.request.gpus * len(job.nodes)) if job.request.gpus else '(null)'}"]
    for name in job.nodes:
        cpus = job.cpus[name]
        listed = ",".join(str(number) for number in job.gpus[name])
        gres = f"gpu:{len(job.gpus[name])}(IDX:{listed})" if listed else ""
        size_mb = job.request.memory_mb + job.request.memory_per_cpu_mb * cpus
        lines.append(f"  Nodes={name} CPU_IDs={'0-' + str(cpus - 1) if cpus > 1 else '0'} Mem={size_mb} GRES={gres}")
    return lines


def node_state(life: Lifecycle, node: Node, now: float) -> str:
    """IDLE, MIXED, ALLOCATED, MAINT, DOWN*, DRAINED or DRAINING."""
    used = _used_cpus(life, node.name)
    if node.down:
        return "DOWN*"
    if node.drained:
        return "DRAINING" if used else "DRAINED"
    if not used:
        return "MAINT" if life.reservations.in_maintenance(node.name, now) else "IDLE"
    return "ALLOCATED" if used >= life.spec.cpus else "MIXED"


def _users_of(life: Lifecycle, name: str) -> list[Job]:
    return [job for job in life.jobs.values() if name in job.nodes and not job.is_over]


def _used_cpus(life: Lifecycle, name: str) -> int:
    return sum(job.cpus[name] for job in _users_of(life, name))


_SCONTROL_STATES = {
    "DRAINED": "IDLE+DRAIN",
    "DRAINING": "MIXED+DRAIN",
    "DOWN*": "DOWN*+NOT_RESPONDING",
    "MAINT": "IDLE+MAINTENANCE+RESERVED",
}


def node_record(life: Lifecycle, node: Node, started: float, now: float) -> list[str]:
    """``scontrol show node``: one string a line."""
    spec = life.spec
    state = node_state(life, node, now)
    used = _used_cpus(life, node.name)
    used_gpus = sum(len(job.gpus[node.name]) for job in _users_of(life, node.name))
    gres = f"gpu:{spec.gpus}" if spec.gpus else "(null)"
    reserved_mb = sum(
        job.request.memory_mb + job.request.memory_per_cpu_mb * job.cpus[node.name]
        for job in _users_of(life, node.name)
    )
    total = f"cpu={spec.cpus},mem={memory(spec.memory_mb)},billing={spec.cpus}"
    lines = [
        f"NodeName={node.name} Arch=x86_64 CoresPerSocket=1 ",
        f"CPUAlloc={used} CPUEfctv={spec.cpus} CPUTot={spec.cpus} CPULoad=0.00",
        "AvailableFeatures=(null)",
        "ActiveFeatures=(null)",
        f"Gres={gres}",
        f"NodeAddr=127.0.0.1 NodeHostName={node.name} Version={spec.slurm_version}",
        "OS=Linux ",
        f"RealMemory={spec.memory_mb} AllocMem={reserved_mb} FreeMem={spec.memory_mb - reserved_mb} "
        f"Sockets={spec.cpus} Boards=1",
        f"State={_SCONTROL_STATES.get(state, state)} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A",
        f"Partitions={','.join(partition.name for partition in spec.partitions)} ",
        f"BootTime={timefmt.moment(started)} SlurmdStartTime={timefmt.moment(started)}",
        f"LastBusyTime={timefmt.moment(started)}",
        f"CfgTRES={total}" + (f",gres/gpu={spec.gpus}" if spec.gpus else ""),
        f"AllocTRES={f'cpu={used}' if used else ''}" + (f",gres/gpu={used_gpus}" if used_gpus else ""),
        "CapWatts=n/a",
        "CurrentWatts=0 AveWatts=0",
        "ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s",
    ]
    if node.reason:
        lines.append(f"Reason={node.reason} [slurm@{timefmt.moment(node.since)}]")
    return lines


def partition_record(spec: FakeSpec, partition: PartitionSpec) -> list[str]:
    """``scontrol show partition``: one string a line."""
    default = "YES" if partition == spec.partitions[0] else "NO"
    cpus = spec.cpus * spec.num_nodes
    return [
        f"PartitionName={partition.name}",
        "AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL",
        f"AllocNodes=ALL Default={default} QoS=N/A",
        f"DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime={partition.grace_s} Hidden=NO",
        "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED",
        f"Nodes={hostlist.compress(spec.node_names)}",
        f"PriorityJobFactor=1 PriorityTier={partition.tier} RootOnly=NO ReqResv=NO OverSubscribe=NO",
        f"OverTimeLimit=NONE PreemptMode={partition.preempt_mode.upper()}",
        f"State=UP TotalCPUs={cpus} TotalNodes={spec.num_nodes} SelectTypeParameters=NONE",
        "JobDefaults=(null)",
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED",
        f"TRES=cpu={cpus},mem={memory(spec.memory_mb * spec.num_nodes)},node={spec.num_nodes},billing={cpus}",
    ]


def config_lines(spec: FakeSpec, now: float, state_dir: str) -> list[str]:
    """``scontrol show config``: the settings that people and programs read."""
    tree = spec.signals == "tree"
    values = {
        "AccountingStorageType": "accounting_storage/slurmdbd" if spec.accounting else "accounting_storage/none",
        "AuthInfo": f"cred_expire={max(1, int(spec.requeue_delay_s) - 1)}",
        "AuthType": "auth/none",
        "ClusterName": spec.name,
        "JobRequeue": "1",
        "KillOnBadExit": "0",
        "KillWait": f"{spec.kill_wait_s} sec",
        "MaxBatchRequeue": str(spec.max_batch_requeue),
        "MinJobAge": f"{int(spec.min_job_age_s)} sec",
        "OverTimeLimit": "0 min",
        "PreemptExemptTime": "00:00:00",
        "PreemptMode": "REQUEUE",
        "PreemptParameters": "send_user_signal" if spec.send_user_signal else "(null)",
        "PreemptType": "preempt/partition_prio",
        "ProctrackType": "proctrack/linuxproc" if tree else "proctrack/cgroup",
        "SchedulerType": "sched/backfill",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_CORE_MEMORY",
        "SlurmctldHost[0]": "localhost",
        "SlurmdTimeout": "300 sec",
        "SLURM_CONF": "(null)",
        "SLURM_VERSION": spec.slurm_version,
        "StateSaveLocation": state_dir,
        "TaskPlugin": "task/none",
    }
    head = f"Configuration data as of {timefmt.moment(now)}"
    return [head, *(f"{name:<23} = {value}" for name, value in values.items()), ""]


def block(lines: Sequence[str], *, oneliner: bool) -> str:
    """A record as scontrol lays it out."""
    if oneliner:
        return " ".join(line.strip() for line in lines) + "\n"
    return "\n   ".join(lines) + "\n\n"
