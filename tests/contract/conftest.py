"""The schedulers that the contract is held against."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract_books import Books
from contract_sites import BACKENDS, Sites
from contract_table import summary
from slurm_bench import Bench

_BENCHES = ("bench", "strict_bench", "cgroup_bench", "books_bench", "shared_books")
"""The fixtures whose parameter is a scheduler."""


@pytest.fixture(scope="session")
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Every scheduler in every variant that a test asks for, each started once."""
    with contextlib.ExitStack() as stack:
        yield Sites(stack, request.getfixturevalue, tmp_path_factory.mktemp)


def _schedulers(group: str = "") -> list[object]:
    """The fixture parameters; with a group the tests of each scheduler stay on one worker, as their cluster does."""
    params = []
    for name in BACKENDS:
        marks = [pytest.mark.real_slurm] if name.startswith("real") else []
        marks += [pytest.mark.xdist_group(f"{group}-{name}")] if group else []
        params.append(pytest.param(name, marks=marks))
    return params


def _bench(request: pytest.FixtureRequest, sites: Sites, directory: Path, variant: str) -> Iterator[Bench]:
    bench = sites.bench(request.param, variant, directory)
    yield bench
    request.node.user_properties.extend(("differs", text) for text in bench.differences)
    bench.close()


@pytest.fixture(params=_schedulers())
def bench(request: pytest.FixtureRequest, sites: Sites, tmp_path: Path) -> Iterator[Bench]:
    """One scheduler with four idle nodes, and what a test needs to work on it."""
    yield from _bench(request, sites, tmp_path, "plain")


@pytest.fixture(params=_schedulers("strict"))
def strict_bench(request: pytest.FixtureRequest, sites: Sites, tmp_path: Path) -> Iterator[Bench]:
    """One that replaces TERM by ``--signal`` at a preemption, and requeues few times by itself."""
    yield from _bench(request, sites, tmp_path, "strict")


@pytest.fixture(params=_schedulers("cgroups"))
def cgroup_bench(request: pytest.FixtureRequest, sites: Sites, tmp_path: Path) -> Iterator[Bench]:
    """One whose signals to a step reach its tasks alone, and which soon forgets jobs that are over."""
    yield from _bench(request, sites, tmp_path, "cgroups")


@pytest.fixture(params=_schedulers("books"))
def books_bench(request: pytest.FixtureRequest, sites: Sites, tmp_path: Path) -> Iterator[Bench]:
    """One with accounting."""
    yield from _bench(request, sites, tmp_path, "books")


@pytest.fixture(scope="module", params=_schedulers("books"))
def shared_books(
    request: pytest.FixtureRequest, sites: Sites, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Books]:
    """Jobs that ended in every way, run side by side, on a scheduler with accounting."""
    bench = sites.bench(request.param, "books", tmp_path_factory.mktemp("books"))
    yield Books(bench)
    bench.close()


@pytest.fixture
def books(request: pytest.FixtureRequest, shared_books: Books) -> Iterator[Books]:
    """What accounting says of jobs that ended in every way."""
    shared_books.bench.differences.clear()
    yield shared_books
    request.node.user_properties.extend(("differs", text) for text in shared_books.bench.differences)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture, so that the table also knows of a test whose scheduler does not come up."""
    parameters = getattr(item, "callspec", None)
    found = [parameters.params[name] for name in _BENCHES if name in parameters.params] if parameters else []
    item.user_properties.extend(("backend", name) for name in found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The run's last words: every test id by scheduler."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    for line in summary([report for report in reports if isinstance(report, pytest.TestReport)], list(BACKENDS)):
        terminalreporter.write_line(line)
