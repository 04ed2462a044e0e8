"""The real counters of a real cgroup with a limit, where this machine lets us make one; the parsing of its place."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilient_launch.job.memory import memory_cgroup, read_counters
from resilient_launch.policy.oom import is_out_of_memory

LIMIT_BYTES = 64 << 20
# Takes the place of this very process, and grows until the kernel ends it.
GREEDY = "import os, sys; hoard = []\nwhile True: hoard.append(b'x' * (1 << 20))"


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup below this process's own, with a limit."""
    own = memory_cgroup()
    if own is None:
        pytest.skip("no memory cgroup in sight")
    parent, version = own
    if not parent.is_dir():
        parent = next(each for each in parent.parents if each.is_dir())
    directory = parent / f"rlaunch-test-{os.getpid()}"
    limit = directory / ("memory.limit_in_bytes" if version == 1 else "memory.max")
    try:
        directory.mkdir()
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        if directory.exists():
            directory.rmdir()
        pytest.skip(f"this process may not limit memory: {error}")
    yield directory
    directory.rmdir()


def test_a_kill_at_the_limit_is_counted(limited: Path) -> None:
    procs = limited / "cgroup.procs"
    command = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(procs), sys.executable, "-c", GREEDY]
    version = memory_cgroup()[1]  # type: ignore[index]
    before = read_counters((limited, version))
    assert before is not None
    killed = subprocess.run(command, check=False, timeout=60)
    after = read_counters((limited, version))
    assert killed.returncode == -9
    assert is_out_of_memory(before, after, {0: killed.returncode})
    assert not is_out_of_memory(after, read_counters((limited, version)), {0: -9})


def test_a_process_is_found_in_its_cgroup(limited: Path) -> None:
    show = "import sys; from resilient_launch.job.memory import memory_cgroup; print(memory_cgroup()[0])"
    command = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(limited / "cgroup.procs"), sys.executable, "-c", show]
    done = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == limited


def test_what_is_absent_counts_nothing(tmp_path: Path) -> None:
    assert read_counters(None) is None
    assert read_counters((tmp_path, 1)) is None and read_counters((tmp_path, 2)) is None
    assert memory_cgroup(2**22 - 1) is None
