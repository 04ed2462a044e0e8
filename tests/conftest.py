"""Fixtures that every kind of test may use."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import real_cluster
from hypothesis import settings
from leaving_out import leave_out

# A busy machine is no failure, and the same change is judged by the same examples each time.
settings.register_profile("rlaunch", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("rlaunch")

# A shell has what it starts in the background ignore it, and so would every process that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


# Before xdist looks for groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs the real Slurm, and keep it on one worker: pytest -n K --dist loadgroup.

    The contract's tests mostly wait: each worker has its own small clusters for them.
    """
    for item in items:
        if "real_slurm" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_slurm)
        has_own_place = "bench" in getattr(item, "fixturenames", ()) or item.get_closest_marker("xdist_group")
        if item.get_closest_marker("real_slurm") and not has_own_place:
            item.add_marker(pytest.mark.xdist_group("real_slurm"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Groups must hold: with pytest 9.2, xdist 3.8 hands out their tests one by one, and says nothing."""
    groups = sorted({mark.args[0] for mark in item.iter_markers("xdist_group")})
    if groups and item.config.getoption("loadgroup", False) and not item.nodeid.endswith(f"@{'_'.join(groups)}"):
        pytest.fail(f"pytest {pytest.__version__} and this xdist don't keep groups of tests together")


@pytest.fixture
def golden() -> Callable[[str, str], str]:
    """Reads a file of tests/golden, after writing what was found into it where RLAUNCH_UPDATE_GOLDEN is set."""

    def read(name: str, found: str) -> str:
        path = ROOT / "tests" / "golden" / name
        if os.environ.get("RLAUNCH_UPDATE_GOLDEN"):
            path.write_text(found)
        return path.read_text()

    return read


@pytest.fixture(scope="session")
def testcluster() -> ModuleType:
    """The module slurm/testcluster/cluster.py, where it can be used; otherwise skips, or fails under CI=true."""
    spec = importlib.util.spec_from_file_location("testcluster", ROOT / "slurm" / "testcluster" / "cluster.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["testcluster"] = module
    spec.loader.exec_module(module)
    leave_out("a real Slurm", module.missing_requirements())
    return module


@pytest.fixture(scope="session")
def real_slurm(testcluster: ModuleType) -> Iterator[dict[str, str]]:
    """An environment whose Slurm commands talk to the installed Slurm, four nodes, one for the whole session."""
    with real_cluster.running(testcluster) as env:
        yield env
