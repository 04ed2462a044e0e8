"""From an empty task on every node to a node agent, and from its end to an exit code."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from resilient_launch.cluster.slurm import SlurmCommands
from resilient_launch.config import load
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import RunState
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job import attempt as attempts
from resilient_launch.job import code, ending, judgement, signals
from resilient_launch.job.context import Allocation, first_reachable, own_addresses
from resilient_launch.job.message import Message
from resilient_launch.job.nursery import Nursery, Opened, open_nursery, why_not
from resilient_launch.job.program import Program, own_search_path
from resilient_launch.job.publish import Publisher
from resilient_launch.job.requeue import excludable
from resilient_launch.policy.notice import DEFAULT_GRACE_S

if TYPE_CHECKING:
    from torch.distributed import TCPStore

CLAIM_TIMEOUT_S = 600.0
SLURM_TIMEOUT_S = 5.0
log = logging.getLogger("rlaunch.agent")


def main(run_dir: str) -> Program | None:
    """Take this node's part in one attempt of the run in ``run_dir``.

    Exits the process, non-zero when the run failed. Returns where there is nothing to do, and in every worker that was
    forked from this process: what the worker is to run.
    """
    signals.block()
    search_path = own_search_path()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", force=True)
    paths = RunPaths(Path(run_dir))
    if is_over(paths):
        log.info("run %s is finished: nothing to do", paths.name)
        return None
    allocation = Allocation.from_environment(os.environ)
    config = load(paths.config, frozen=True)
    _prepare_environment(config, paths)
    program = worker_program(config, paths)
    opened = _open_nursery(config, program, search_path)
    if opened.program is not None:
        return opened.program
    logging.getLogger("torch").setLevel(logging.ERROR)
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    signals.SignalReader(lambda name: inbox.put(Message(kind="signal", value=(name, None)))).start()
    exit_code = _run(config, paths, allocation, inbox, program, opened.nursery)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the elastic agent and of the store may still be waiting on peers that have left.
    os._exit(exit_code)


def _open_nursery(config: LaunchConfig, program: Program, search_path: list[str]) -> Opened:
    """Where workers may be forked, a process that has imported torch once for all of them."""
    if not config.preload:
        return Opened()
    if why := why_not(program, dict(config.env), os.environ):
        log.info("workers start by themselves: %s", why)
        return Opened()
    # Before any thread is there, and for the agent as well.
    import torch.distributed  # noqa: F401

    return open_nursery(program, search_path)


def is_over(paths: RunPaths) -> bool:
    """Whether the verdict says that no attempt should run: a requeued run whose work is done leaves at once."""
    try:
        verdict = json.loads(paths.verdict.read_bytes())
    except (OSError, ValueError):
        return False
    return bool(verdict.get("state") == RunState.FINISHED)


def _run(
    config: LaunchConfig,
    paths: RunPaths,
    allocation: Allocation,
    inbox: queue.SimpleQueue[Message],
    program: Program,
    nursery: Nursery | None,
) -> int:
    scheduler = SlurmCommands(timeout_s=SLURM_TIMEOUT_S)
    if allocation.is_first:
        store, attempt = _claim(config, paths, allocation)
        judgement.record_silent_ends(config, paths, scheduler, attempt)
        decision = judgement.judge_silence(config, paths, attempt)
        if decision is not None and decision.action == "fail":
            ending.give_up(scheduler, paths, allocation, attempt, decision)
            return 1
        address = "127.0.0.1" if allocation.num_nodes == 1 else attempt.addresses[0]
    else:
        store, attempt, address = _join(paths, allocation)
    # Imported late: torch reads the environment, and the other nodes need not wait for the elastic agent.
    from resilient_launch.job.agent import NodeAgent

    log.info(
        "attempt %d of %s: job %s, restart %d, node %s (%d of %d)",
        attempt.number,
        paths.name,
        allocation.job_id,
        allocation.slurm_restart_count,
        allocation.node,
        allocation.node_index + 1,
        allocation.num_nodes,
    )
    agent = NodeAgent(
        config=config,
        paths=paths,
        allocation=allocation,
        attempt=attempt,
        store=store,
        address=address,
        program=program,
        nursery=nursery,
        inbox=inbox,
        classify=ending.classifier(
            scheduler,
            allocation,
            signal_lead_s=config.signal_lead_s,
            kill_wait_s=_kill_wait_s(scheduler) if allocation.is_first else 0.0,
        ),
        publisher=Publisher(
            scheduler,
            allocation.job_id,
            num_gpus=allocation.num_nodes * (config.gpus_per_node or config.workers_per_node),
            # The comment that the user asked for stays.
            is_allowed="comment" not in dict(config.sbatch),
        ),
        may_leave=lambda nodes: bool(
            excludable(
                scheduler,
                nodes,
                asked=str(dict(config.sbatch).get("exclude", "")),
                partition=config.partition or "",
                num_nodes=config.nodes.min,
            )
        ),
    )
    report = agent.run()
    if not allocation.is_first:
        word = ending.report_and_wait(agent.store, allocation, report, timeout_s=agent.seconds_to_wait())
        log.info("leaving: %s", word)
        agent.close()
        return 0 if word in ("done", "requeue", "cancel", "stop") else 1
    conclusion = ending.conclude(
        store=agent.store,
        scheduler=scheduler,
        config=config,
        paths=paths,
        allocation=allocation,
        attempt=attempt,
        report=report,
        standing_notice=agent.settled_notice,
        request=agent.desk.leave,
    )
    agent.emit_end(conclusion.cause, report.end_step)
    agent.close()
    return 0 if conclusion.requeued or conclusion.decision.action in ("done", "cancel", "stop") else 1


def _prepare_environment(config: LaunchConfig, paths: RunPaths) -> None:
    os.chdir(config.workdir)
    os.environ.update(dict(config.env))
    os.environ.setdefault("OMP_NUM_THREADS", str(config.cpus_per_worker))
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if config.code.snapshot and paths.code.is_dir():
        inherited = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(paths.code), *([inherited] if inherited else [])])


def worker_program(config: LaunchConfig, paths: RunPaths) -> Program:
    """What every worker executes: the snapshot of the user's code where there is one, with the arguments as written."""
    root = paths.code if config.code.snapshot and paths.code.is_dir() else config.workdir
    return Program(
        python=config.python,
        script=str(root / config.script) if config.script is not None else None,
        module=config.module,
        command=config.command,
        args=config.args,
    )


def _claim(config: LaunchConfig, paths: RunPaths, allocation: Allocation) -> tuple[TCPStore, attempts.Attempt]:
    from torch.distributed import TCPStore

    # Port 0: the kernel gives a free one, so that two jobs on a node cannot meet.
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    attempt = attempts.claim(
        paths,
        job_id=allocation.job_id,
        slurm_restart_count=allocation.slurm_restart_count,
        nodes=allocation.nodes,
        addresses=own_addresses(),
        port=store.port,
        code_version=_code_version(config, paths),
    )
    return store, attempt


def _join(paths: RunPaths, allocation: Allocation) -> tuple[TCPStore, attempts.Attempt, str]:
    from torch.distributed import TCPStore

    attempt = attempts.wait_for_claim(
        paths,
        job_id=allocation.job_id,
        slurm_restart_count=allocation.slurm_restart_count,
        timeout_s=CLAIM_TIMEOUT_S,
        keep_waiting=lambda: not is_over(paths),
    )
    if attempt is None:
        raise RlaunchError(
            "the first node's agent",
            why=f"did not claim an attempt within {CLAIM_TIMEOUT_S:.0f} s",
            where=str(paths.attempts),
        )
    address = first_reachable(attempt.addresses, attempt.port)
    if address is None:
        raise RlaunchError(
            f"the first node ({', '.join(attempt.addresses)} port {attempt.port})",
            why="does not accept connections from this node",
            hint="check that compute nodes reach each other by name or address",
        )
    return TCPStore(address, attempt.port, is_master=False, wait_for_workers=False), attempt, address


def _code_version(config: LaunchConfig, paths: RunPaths) -> str:
    """What this attempt executes: the snapshot made at submit, or what the working directory holds by now."""
    if config.code.snapshot:
        return str(json.loads(paths.run.read_bytes())["code_version"])
    files = code.list_files(config.workdir, config.code.exclude, outside=paths.directory.parent)
    return code.version(config.workdir, files)


def _kill_wait_s(scheduler: SlurmCommands) -> float:
    """Slurm's KillWait; its default where the controller does not say."""
    started = time.monotonic()
    with contextlib.suppress(RlaunchError):
        known = scheduler.kill_wait_s()
        if known is not None:
            return known
    log.warning("KillWait is unknown after %.1f s: %.0f s assumed", time.monotonic() - started, DEFAULT_GRACE_S)
    return DEFAULT_GRACE_S
