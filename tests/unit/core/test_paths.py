import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.core.errors import UsageError
from resilient_launch.core.paths import RunPaths


def test_every_name_lies_inside_the_run_directory() -> None:
    paths = RunPaths.of("demo", Path("/runs"))
    names = [paths.config, paths.run, paths.code, paths.verdict, paths.attempt(3), paths.attempt_end(3)]
    names += [paths.attempt_logs(3), paths.requeue_request("17_2", 1), *paths.all()]
    assert paths.directory == Path("/runs/demo")
    assert len(set(names)) == len(names)
    assert all(name.is_relative_to(paths.directory) and name != paths.directory for name in names)


def test_attempts_sort_by_name() -> None:
    paths = RunPaths.of("demo", Path("/runs"))
    assert [paths.attempt(n).name for n in (9, 10)] == ["0009.json", "0010.json"]


def test_no_run_outside_the_root() -> None:
    with pytest.raises(UsageError):
        RunPaths.of("../etc", Path("/runs"))


def test_nothing_touches_the_disk(tmp_path: Path) -> None:
    RunPaths.of("demo", tmp_path).all()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("value", "expected"), [("/big/runs", "/big/runs"), ("", "{cwd}/runs"), (None, "{cwd}/runs")])
def test_root_is_rlaunch_root_or_runs_here(tmp_path: Path, value: str | None, expected: str) -> None:
    environment = {key: text for key, text in os.environ.items() if key != "RLAUNCH_ROOT"}
    if value is not None:
        environment["RLAUNCH_ROOT"] = value
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    code = "from resilient_launch.core.paths import default_root; print(default_root())"
    shown = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == expected.format(cwd=tmp_path)
