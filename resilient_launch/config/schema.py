"""What a run is made of. Every value is checked and resolved before one of these exists; times are seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from resilient_launch.checkpoint.store.hashing import DEFAULT_ALGORITHM
from resilient_launch.cluster.fake.spec import FakeSpec
from resilient_launch.policy.failure_rate import FAILURES_PER_1000_NODE_DAYS
from resilient_launch.policy.retention import Policy, any_of, best, every_steps, newest, spaced


@dataclass(frozen=True, kw_only=True)
class NodeRange:
    """How many nodes the run accepts, both ends included."""

    min: int
    max: int

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"


@dataclass(frozen=True, kw_only=True)
class Every:
    """An interval in steps, in seconds, or ``auto``: exactly one of the three is set."""

    steps: int | None = None
    seconds: float | None = None
    auto: bool = False
    """Solved for while the run goes on, from what checkpoints cost and how often it is interrupted."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The ``count`` checkpoints with the lowest, or highest, ``metric``."""

    metric: str
    count: int = 1
    is_highest: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are made and kept, and what a resume insists on."""

    every: Every = Every(auto=True)
    """How often training saves without being asked."""
    failures_per_1000_node_days: float = FAILURES_PER_1000_NODE_DAYS
    """What ``auto`` believes of the nodes before the run has shown better."""
    failure_history: Path | None = None
    """File on shared storage that the runs of a site feed with how their attempts ended, and ``auto`` learns from."""
    preempt_exempt_s: float = 0.0
    """How old an attempt must be before the site may preempt it (PreemptExemptTime); ``auto`` saves just before."""
    keep: int = 3
    """How many of the newest checkpoints retention leaves."""
    keep_spaced_s: float | None = None
    """Retention also leaves a history, one checkpoint in so much time."""
    keep_every_steps: int | None = None
    """Retention also leaves the checkpoints of steps that are a multiple of this."""
    keep_best: Best | None = None
    """Retention also leaves the best by a value that the script logs: ``lowest loss``, ``3 highest accuracy``."""
    on_topology_change: Literal["stop", "warn"] = "stop"
    """What a resume does when the checkpoint's parallel layout is another, the configured node range aside."""
    on_code_change: Literal["stop", "warn"] = "stop"
    """What a resume does when the checkpoint was written by other code."""
    allow: tuple[str, ...] = ()
    """Differences from the checkpoint that a resume accepts: topology, code, missing, unexpected, shape, dtype."""
    save_timeout_s: float = 1800.0
    """How long one save may take before it is given up."""
    is_async: bool = True
    """Whether training goes on while a copy of its state is written; the copy takes memory of the state's size."""
    local_every_steps: int | None = None
    """After how many steps each a copy goes into the nodes' memory, which a worker group that starts again there goes
    on from; takes memory of twice the state's size."""
    commit_by: Literal["rename", "manifest"] = "rename"
    """What a checkpoint appears by: one rename, or, on storage without an atomic one, its manifest, put last."""
    digest: str = DEFAULT_ALGORITHM
    """How content is hashed: xxh3-128 finds corruption; blake2b, blake3 (where installed) and sha256 tampering too."""
    on_save_failure: Literal["stop", "warn"] = "warn"
    """What training does when a save failed; with ``warn`` it goes on, and saves again when the next one is due."""

    @property
    def tolerated(self) -> frozenset[str]:
        """The kinds of difference in a state's keys, shapes and dtypes that are accepted."""
        return frozenset(self.allow) - {"topology", "code"}

    def stops_on(self, kind: Literal["topology", "code"]) -> bool:
        """Whether a resume stops when the layout, or the code, is not the checkpoint's."""
        wanted = self.on_topology_change if kind == "topology" else self.on_code_change
        return wanted == "stop" and kind not in self.allow

    def retention(self) -> Policy:
        """What the ``keep`` keys come to: a checkpoint stays where one of them wants it."""
        policies = [newest(self.keep)]
        if self.keep_spaced_s is not None:
            policies.append(spaced(self.keep_spaced_s))
        if self.keep_every_steps is not None:
            policies.append(every_steps(self.keep_every_steps))
        if self.keep_best is not None:
            policies.append(best(self.keep_best.metric, self.keep_best.count, is_highest=self.keep_best.is_highest))
        return any_of(*policies)


@dataclass(frozen=True, kw_only=True)
class StaggerConfig:
    """How runs that share storage take turns at saving."""

    group: Path | None = None
    """Directory on shared storage that the runs of a group have in common; None for no group."""
    writers: int | None = None
    """How many may save at once; None adapts it to the bandwidth seen."""
    max_wait_s: float = 1800.0
    """How long a save that is due waits for its turn before it is made all the same."""


@dataclass(frozen=True, kw_only=True)
class RestartConfig:
    """How often the run is started again before it stops for good; progress refills each budget."""

    max_worker_restarts: int = 3
    """Worker-group restarts inside one attempt."""
    max_crashes: int = 3
    """Requeues without progress for each cause of failure: crash, hang, out of memory, node failure."""
    same_step: int = 3
    """How often in a row the same step may be reached and not passed, and a checkpoint lead nowhere."""
    backoff_s: float = 10.0
    """Wait before the first requeue after a failure; doubles with each further one without progress."""
    backoff_max_s: float = 600.0
    """The longest such wait."""
    exclude_nodes: bool = True
    """Whether a requeue after a failure stays away from nodes that are suspect."""
    requeue_stragglers: bool = False
    """Whether a run saves and is requeued without a node whose ranks are persistently slower than all others'."""


@dataclass(frozen=True, kw_only=True)
class HangConfig:
    """When a run that stands still is started again."""

    enabled: bool = True
    """Whether hangs are looked for."""
    floor_s: float = 10.0
    """The shortest that any phase may stand still."""
    ceiling_s: float = 1800.0
    """The longest that any phase may stand still, and the limit of a phase of which nothing was seen yet."""


@dataclass(frozen=True, kw_only=True)
class HealthConfig:
    """What every node must show before the first step."""

    enabled: bool = True
    """Whether nodes are checked."""
    min_shm_mb: int = 16
    """MiB that must be free in /dev/shm, where data loaders pass their batches."""
    min_tmp_mb: int = 64
    """MiB that must be free in the temporary directory."""
    max_clock_skew_s: float = 5.0
    """How far a node's clock may be from the first node's."""


@dataclass(frozen=True, kw_only=True)
class CodeConfig:
    """Which code the run executes."""

    snapshot: bool = True
    """Whether the run executes a copy of workdir that is made at submit, so that later edits do not reach it."""
    exclude: tuple[str, ...] = ()
    """Glob patterns, relative to workdir, of what the copy leaves out."""


@dataclass(frozen=True, kw_only=True)
class At:
    """When a fault strikes: once ``step`` steps are complete, or ``after_s`` seconds after the first step."""

    step: int | None = None
    after_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that the fake cluster does to the run."""

    verb: ClassVar[str]
    at: At


@dataclass(frozen=True, kw_only=True)
class Preempt(Fault):
    """A job of a higher tier takes the run's nodes."""

    verb = "preempt"


@dataclass(frozen=True, kw_only=True)
class TimeLimit(Fault):
    """The time limit is pulled in to ``in_s`` from now; None is the shortest that lets the signal lead fire."""

    verb = "time-limit"
    in_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class FailNode(Fault):
    """The gang's node of index ``node`` goes silent; with ``partition_network`` what runs there runs on."""

    verb = "fail-node"
    node: int
    partition_network: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeNode(Fault):
    """Every node that failed or was drained is back."""

    verb = "resume-node"


@dataclass(frozen=True, kw_only=True)
class Drain(Fault):
    """No job starts on the gang's node of index ``node`` any more."""

    verb = "drain"
    node: int


@dataclass(frozen=True, kw_only=True)
class Maintenance(Fault):
    """All nodes are reserved, from ``in_s`` from now on, for ``for_s``."""

    verb = "maintenance"
    in_s: float = 600.0
    for_s: float = 3600.0


@dataclass(frozen=True, kw_only=True)
class Fill(Fault):
    """Jobs of a whole node each queue up, ``num_jobs`` or one a node, and run for ``for_s``."""

    verb = "fill"
    num_jobs: int | None = None
    for_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class SlowAccounting(Fault):
    """sacct answers ``delay_s`` late; 0 is accounting as usual."""

    verb = "slow-accounting"
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class NoAccounting(Fault):
    """The accounting database goes away."""

    verb = "no-accounting"


@dataclass(frozen=True, kw_only=True)
class ControllerDown(Fault):
    """Slurm's controller goes away; jobs run on."""

    verb = "controller-down"


@dataclass(frozen=True, kw_only=True)
class ControllerUp(Fault):
    """Slurm's controller comes back."""

    verb = "controller-up"


@dataclass(frozen=True, kw_only=True)
class KillWorker(Fault):
    """The worker of global rank ``rank`` gets ``signal``, a name without SIG."""

    verb = "kill-worker"
    rank: int
    signal: str = "KILL"


@dataclass(frozen=True, kw_only=True)
class StopWorker(Fault):
    """The worker of global rank ``rank`` freezes (SIGSTOP)."""

    verb = "stop-worker"
    rank: int


@dataclass(frozen=True, kw_only=True)
class Cancel(Fault):
    """The run's user cancels the job."""

    verb = "cancel"


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """One run, resolved: every path absolute, every default filled in. None leaves a choice to the site."""

    name: str
    """The run's name, its directory and its Slurm job name."""

    script: str | None = None
    """Python file to run, relative to workdir where it lies inside; exactly one of script, module, command is set."""
    module: str | None = None
    """Python module to run, as in python -m."""
    command: tuple[str, ...] = ()
    """Program and its first arguments, when the worker is not Python."""
    args: tuple[str, ...] = ()
    """Arguments of every worker, exactly as written in the file."""
    workdir: Path
    """Absolute directory that workers start in."""
    python: str
    """Interpreter of node agents and workers: an absolute path, or a name to look up on the node's PATH."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables of every worker, added to what the job has."""
    preload: bool = True
    """Whether Python workers are forked from a process that has imported torch already, which takes seconds off every
    start; off for scripts that set what torch reads when it is imported (OMP_NUM_THREADS, TORCH_LOGS)."""
    setup: tuple[str, ...] = ()
    """Lines of the user's own shell, run in the batch script before anything else."""

    nodes: NodeRange = NodeRange(min=1, max=1)
    """How many nodes the gang has."""
    workers_per_node: int = 1
    """How many ranks each node runs."""
    global_batch: int | None = None
    """Samples of one step over all ranks; ``run.batch_size`` is a rank's share, whatever the number of nodes."""
    gpus_per_node: int = 0
    """GPUs asked of each node."""
    cpus_per_worker: int = 1
    """CPU cores asked for each worker."""
    memory_mb: int | None = None
    """MiB asked of each node."""
    time_s: float | None = None
    """Time limit of one attempt, infinity for unlimited; Slurm rounds it up to whole minutes."""
    signal_lead_s: int = 120
    """How long before the time limit Slurm gives notice."""
    partition: str | None = None
    """Partition, or several with commas between."""
    account: str | None = None
    """Account that is charged."""
    qos: str | None = None
    """Quality of service."""
    sbatch: tuple[tuple[str, str | Literal[True]], ...] = ()
    """Further sbatch options, long names without dashes; True is an option without a value."""

    checkpoint: CheckpointConfig = CheckpointConfig()
    """When checkpoints are made and kept."""
    stagger: StaggerConfig = StaggerConfig()
    """How the run takes turns with others at saving."""
    restart: RestartConfig = RestartConfig()
    """How often the run is started again."""
    hang: HangConfig = HangConfig()
    """When a run that stands still is started again."""
    health: HealthConfig = HealthConfig()
    """What every node must show before the first step."""
    code: CodeConfig = CodeConfig()
    """Which code the run executes."""
    cluster: Literal["slurm", "fake"] = "slurm"
    """Where the run goes: the Slurm whose commands are on PATH, or one of real processes on this machine."""
    fake: FakeSpec = field(default_factory=FakeSpec)
    """What the fake cluster looks like; what the file leaves open is sized to fit the run."""
    faults: tuple[Fault, ...] = ()
    """What the fake cluster does to the run, in the file's order."""

    @property
    def cpus_per_node(self) -> int:
        """CPU cores asked of each node."""
        return self.workers_per_node * self.cpus_per_worker
