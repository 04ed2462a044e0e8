"""The schedulers that the contract is held against."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from contract_table import summary
from slurm_bench import Bench

from resilient_launch.cluster.fake.cluster import FakeCluster
from resilient_launch.cluster.fake.spec import FakeSpec, PartitionSpec

BACKENDS = {
    "fake": "fake_slurm",
    "fake-24.11": "fake_slurm_24",
    "real": "real_slurm",
    "real-24.11": "real_slurm_24",
}
"""Test id and fixture; 22.05 where the name has no version."""


def _fake(directory: Path, like: Literal["22.05", "24.11"]) -> Iterator[dict[str, str]]:
    """An environment whose Slurm commands are the fake's, set up like the real one of the tests."""
    low = PartitionSpec(name="low", tier=1, preempt_mode="requeue", grace_s=10)
    nograce = PartitionSpec(name="nograce", tier=1, preempt_mode="requeue", grace_s=0)
    partitions = (low, nograce, PartitionSpec(name="high", tier=10))
    spec = FakeSpec(partitions=partitions, requeue_delay_s=11.0, accounting=False, gpus=2, like=like)
    cluster = FakeCluster(directory)
    cluster.up(spec)
    yield {**os.environ, **cluster.env()}
    cluster.down()


@pytest.fixture(scope="session")
def fake_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The fake that follows 22.05."""
    yield from _fake(tmp_path_factory.mktemp("fake"), "22.05")


@pytest.fixture(scope="session")
def fake_slurm_24(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The fake that follows 24.11."""
    yield from _fake(tmp_path_factory.mktemp("fake24"), "24.11")


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.real_slurm if name.startswith("real") else ()) for name in BACKENDS]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """One scheduler with four idle nodes, and what a test needs to work on it."""
    request.node.user_properties.append(("backend", request.param))
    env = request.getfixturevalue(BACKENDS[request.param])
    version = "24.11" if request.param.endswith("24.11") else "22.05"
    bench = Bench(env, tmp_path, version=version)
    yield bench
    request.node.user_properties.extend(("differs", text) for text in bench.differences)
    bench.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The run's last words: every test id by scheduler."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    for line in summary([report for report in reports if isinstance(report, pytest.TestReport)], list(BACKENDS)):
        terminalreporter.write_line(line)
