"""The schedulers of the contract, each in the variants that its tests need."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import real_cluster
from leaving_out import leave_out, leave_out_for_the_kernel
from slurm_bench import Bench

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("fake", "fake-24.11", "real", "real-24.11")
"""22.05 where the name has no version."""
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "books": ({"accounting": True, "num_nodes": 6}, {"accounting": True, "num_nodes": 6}),
    "strict": ({"send_user_signal": True, "max_batch_requeue": 2}, {"send_user_signal": True, "max_batch_requeue": 2}),
    "cgroups": ({"signals": "task", "min_job_age_s": 2.0}, {"cgroups": True, "min_job_age_s": 2}),
}
"""How a variant differs from the plain cluster: settings of the fake's specification, and of the real one's."""


class Sites:
    """Starts clusters when they are asked for; ``stack`` takes them down."""

    def __init__(
        self, stack: contextlib.ExitStack, fixture: Callable[[str], Any], directory: Callable[[str], Path]
    ) -> None:
        self._stack, self._fixture, self._directory = stack, fixture, directory
        self._running: dict[tuple[str, str], dict[str, str]] = {}

    def bench(self, backend: str, variant: str, directory: Path) -> Bench:
        """What a test works with; leaves the test out where the machine cannot have such a cluster."""
        key = (backend, variant)
        if key not in self._running:
            self._running[key] = self._stack.enter_context(self._start(backend, variant))
        return Bench(self._running[key], directory, backend=backend)

    def _start(self, backend: str, variant: str) -> contextlib.AbstractContextManager[dict[str, str]]:
        fake, real = VARIANTS[variant]
        # Long enough for all that a test does while a requeued job waits.
        real = {"cred_expire_s": 30, **real}
        if backend.startswith("fake"):
            return _fake(self._directory("fake"), "24.11" if backend.endswith("24.11") else "22.05", fake)
        testcluster: ModuleType = self._fixture("testcluster")
        folder = None
        if backend.endswith("24.11"):
            folder = Path(os.environ.get("RLAUNCH_SLURM_24", ROOT / "build" / "slurm-24.11"))
        without_cgroups = testcluster.ClusterSpec(**{**real, "cgroups": False})
        leave_out(
            "Slurm 24.11" if folder else "a real Slurm", testcluster.missing_requirements(folder, without_cgroups)
        )
        leave_out_for_the_kernel("cgroups", testcluster.missing_requirements(folder, testcluster.ClusterSpec(**real)))
        return real_cluster.running(testcluster, slurm=folder, **real)


@contextlib.contextmanager
def _fake(directory: Path, like: Literal["22.05", "24.11"], settings: dict[str, Any]) -> Iterator[dict[str, str]]:
    """An environment whose Slurm commands are the fake's, set up like the real one of the tests."""
    low = PartitionSpec(name="low", tier=1, preempt_mode="requeue", grace_s=10)
    nograce = PartitionSpec(name="nograce", tier=1, preempt_mode="requeue", grace_s=0)
    partitions = (low, nograce, PartitionSpec(name="high", tier=10))
    plain: dict[str, Any] = {"requeue_delay_s": 31.0, "accounting": False, "gpus": 2}
    cluster = FakeCluster(directory)
    cluster.up(FakeSpec(partitions=partitions, like=like, **{**plain, **settings}))
    try:
        yield {**os.environ, **cluster.env()}
    finally:
        cluster.down()
