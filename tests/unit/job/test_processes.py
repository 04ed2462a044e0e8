"""Ending a worker group: whatever its processes turned into, nothing is left, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys

from job_children import is_alive, python, read_line, wait_until

from resilient_launch.job import processes

# Prints the ids of: a child, a grandchild in a session of its own, and a child that ignores TERM; then sleeps.
FAMILY = """
import os, signal, subprocess, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
child = os.fork()
if child == 0:
    time.sleep(600)
grandchild = subprocess.Popen(["sleep", "600"], start_new_session=True)
print(os.getpid(), child, grandchild.pid, flush=True)
if len(sys.argv) > 1:
    os._exit(3)
time.sleep(600)
"""


def _family(process: subprocess.Popen[str]) -> list[int]:
    return [int(word) for word in read_line(process).split()]


def test_members_are_descendants_and_sessions() -> None:
    with python(FAMILY) as process, python("import time; print(1, flush=True); time.sleep(600)") as other:
        read_line(other)
        family = _family(process)
        assert processes.members([process.pid]) == set(family)
        assert other.pid not in processes.members([process.pid])
        assert processes.kill([process.pid]) == set()


def test_kill_ends_all_of_them_and_nobody_else() -> None:
    with python(FAMILY) as process, python("import time; print(1, flush=True); time.sleep(600)") as other:
        read_line(other)
        family = _family(process)
        assert processes.kill([process.pid]) == set()
        assert process.wait(30) == -9
        assert not any(is_alive(pid) for pid in family)
        assert other.poll() is None


def test_children_of_a_dead_leader_are_found_by_their_session() -> None:
    """Data-loading processes whose worker crashed are somebody else's children by then."""
    with python(FAMILY, "dies") as process:
        _, child, grandchild = _family(process)
        assert process.wait(30) == 3
        assert child in processes.members([process.pid])
        assert processes.kill([process.pid]) == set()
        wait_until(lambda: not is_alive(child))
        # One that has a session of its own and no parent left is beyond what /proc can tell.
        os.kill(grandchild, 9)


def test_the_caller_is_never_a_member() -> None:
    assert os.getpid() not in processes.members([os.getpid(), os.getppid()])


def test_a_name_with_spaces_and_parentheses_is_read_right() -> None:
    code = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b') R 1 (x', 0, 0, 0); print(1, flush=True); time.sleep(600)"
    )
    with python(code) as process:
        read_line(process)
        assert processes.members([process.pid]) == {process.pid}


def test_nobody_to_kill_is_fine() -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    assert processes.kill([int(done.stdout)]) == set()
