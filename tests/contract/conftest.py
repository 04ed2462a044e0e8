"""The schedulers that the contract is held against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_bench import Bench

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec


@pytest.fixture(scope="session")
def fake_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """An environment whose Slurm commands are the fake's, set up like the real one of the tests."""
    low = PartitionSpec(name="low", tier=1, preempt_mode="requeue", grace_s=10)
    spec = FakeSpec(partitions=(low, PartitionSpec(name="high", tier=10)), requeue_delay_s=11.0, accounting=False)
    cluster = FakeCluster(tmp_path_factory.mktemp("fake"))
    cluster.up(spec)
    yield {**os.environ, **cluster.env()}
    cluster.down()


@pytest.fixture(
    params=[
        "fake",
        pytest.param("real", marks=pytest.mark.real_slurm),
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """One scheduler with four idle nodes, and what a test needs to work on it."""
    env = request.getfixturevalue(f"{request.param}_slurm")
    bench = Bench(env, tmp_path)
    yield bench
    bench.close()
