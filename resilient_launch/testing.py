"""For a project's own tests: assert that its training resumes exactly.

In ``conftest.py``: ``pytest_plugins = ["resilient_launch.testing"]``. Then, in a test::

    def test_training_resumes_exactly(rehearse):
        rehearse("rlaunch.yaml", set=["model.size=tiny"])

It takes half a minute with the defaults, for a job that starts in a few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from resilient_launch.config import load
from resilient_launch.lab.rehearse.scenarios import LEAST_STEPS, Moments, choose
from resilient_launch.lab.rehearse.session import Rehearsal, Session
from resilient_launch.lab.rehearse.text import result_lines, summary_lines


def assert_resumes_exactly(
    config: Path | str,
    *,
    directory: Path,
    scenarios: Sequence[str] = ("crash",),
    steps: int = LEAST_STEPS,
    seed: int = 1,
    set: Sequence[str] = (),  # noqa: A002
) -> Rehearsal:
    """Rehearse the job of ``config`` below ``directory`` under ``scenarios``, names or letters of ``rlaunch rehearse``.

    ``set`` overrides keys of the configuration, as in ``a.b=c``. Raises AssertionError, with the first step that
    differs and the piece that is probably missing, when any of them does not end as the uninterrupted run does;
    UsageError for a bad configuration.
    """
    moments = Moments.of(steps)
    command = ["rlaunch", "rehearse", str(config), "--steps", str(steps), "--seed", str(seed)]
    command += [word for each in set for word in ("--set", each)]
    session = Session(config=load(Path(config), set), directory=directory, moments=moments, seed=seed)
    found = session.run(choose(scenarios))
    if not found.is_good:
        lines = [line for result in found.results for line in result_lines(result, command)]
        raise AssertionError("\n".join([*summary_lines(found), *lines]))
    return found


class Rehearse(Protocol):
    """What the ``rehearse`` fixture gives: ``assert_resumes_exactly`` in the test's own directory."""

    def __call__(self, config: Path | str, **options: Any) -> Rehearsal: ...


@pytest.fixture
def rehearse(tmp_path: Path) -> Rehearse:
    """Asserts that a job resumes exactly; everything it ran stays in the test's temporary directory."""

    def run(config: Path | str, **options: Any) -> Rehearsal:
        return assert_resumes_exactly(config, directory=tmp_path / "rehearsal", **options)

    return run
