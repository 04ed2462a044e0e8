"""Where a node agent finds itself: the facts of its allocation, read from Slurm's environment once."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.cluster.hostlist import expand
from resilient_launch.core.errors import RlaunchError
from resilient_launch.core.paths import RunPaths


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One task of one admission of a job. ``end_time`` is wall clock, or None where Slurm does not export it."""

    job_id: str
    slurm_restart_count: int
    node_index: int
    node: str
    nodes: tuple[str, ...]
    end_time: float | None

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Allocation:
        """Read Slurm's variables. Raises RlaunchError when this process is not a task of a Slurm job."""
        try:
            job_id, index = env["SLURM_JOB_ID"], int(env["SLURM_NODEID"])
            nodes = tuple(expand(env.get("SLURM_STEP_NODELIST") or env["SLURM_JOB_NODELIST"]))
        except (KeyError, ValueError) as error:
            raise RlaunchError(
                "Slurm's environment", why=f"is incomplete ({error})", hint="start runs with: rlaunch submit"
            ) from error
        end = env.get("SLURM_JOB_END_TIME", "")
        return cls(
            job_id=job_id,
            slurm_restart_count=int(env.get("SLURM_RESTART_COUNT") or 0),
            node_index=index,
            node=env.get("SLURMD_NODENAME") or socket.gethostname(),
            nodes=nodes,
            end_time=float(end) if end.isdigit() else None,
        )

    @property
    def is_first(self) -> bool:
        """Whether this node's agent leads the gang."""
        return self.node_index == 0

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)


def worker_variables(paths: RunPaths, allocation: Allocation, *, attempt: int, page_dir: Path) -> dict[str, str]:
    """What every worker of this node finds in its environment, whichever worker group it is in."""
    return {
        "RLAUNCH_RUN_DIR": str(paths.directory),
        "RLAUNCH_RUN_ID": str(json.loads(paths.run.read_bytes())["id"]),
        "RLAUNCH_ATTEMPT": str(attempt),
        "RLAUNCH_PAGE_DIR": str(page_dir),
        "RLAUNCH_LOG_DIR": str(paths.attempt_logs(attempt)),
        "RLAUNCH_NODE": allocation.node,
        "RLAUNCH_NODE_INDEX": str(allocation.node_index),
    }


def own_addresses() -> tuple[str, ...]:
    """Names and addresses under which other nodes may reach this one, the likeliest first."""
    found = [socket.gethostname()]
    # Asking the kernel which interface leads out sends nothing; it covers sites whose node names do not resolve.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            found.append(str(probe.getsockname()[0]))
        except OSError:
            pass
    return tuple(dict.fromkeys(found))


def own_address_towards(address: str) -> str:
    """This node's address on the interface that leads to ``address``; its name where none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def reachable_at(master: str) -> tuple[str, ...]:
    """Where other nodes of a gang may reach this one, the interface that leads to their ``master`` first."""
    return tuple(dict.fromkeys((own_address_towards(master), *own_addresses())))


def first_reachable(addresses: tuple[str, ...], port: int, *, timeout_s: float = 5.0) -> str | None:
    """The first of ``addresses`` that accepts a connection on ``port``; None when none does."""
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=timeout_s):
                return address
        except OSError:
            continue
    return None
