"""The notice signals are kept, read by one thread, and obeyed by data loaders only when their own parent sends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job_children import is_alive, python, read_line, wait_until

READER = """
import sys, threading, time
from resilient_launch.job import signals
signals.block()
print("blocked", flush=True)
sys.stdin.readline()
got = threading.Semaphore(0)
def on_signal(name):
    print(name, threading.current_thread().name, flush=True)
signals.SignalReader(on_signal).start()
sys.stdin.readline()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_came_before_the_reader_is_kept(number: signal.Signals) -> None:
    with python(READER) as process:
        assert process.stdin is not None
        assert read_line(process) == "blocked"
        process.send_signal(number)
        process.stdin.write("\n")
        process.stdin.flush()
        assert read_line(process) == f"{number.name} rlaunch-signals"
        # And so is one that comes later.
        process.send_signal(signal.SIGUSR1)
        assert read_line(process) == "SIGUSR1 rlaunch-signals"


def test_the_mask_of_the_batch_script_keeps_a_signal_from_before_python_starts() -> None:
    """``env --block-signal`` as in the sbatch script: the signal waits through exec and through every import."""
    code = "import signal; print(sorted(s.name for s in signal.sigpending()))"
    shell = f"kill -TERM $$; exec {sys.executable} -c '{code}'"
    command = ["env", "--block-signal=TERM", "--block-signal=USR1", "--block-signal=USR2", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['SIGTERM']"


# The parent blocks the signals, guards what it forks, forks two children and says who they are.
PARENT = """
import os, signal, sys, time
from resilient_launch.job import signals
signals.block()
signals.guard_forked_children()
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        while True:
            time.sleep(600)
    children.append(child)
print(*children, flush=True)
for line in sys.stdin:
    os.kill(children[int(line)], signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(children[int(line)], 0)[1]), flush=True)
"""


def test_a_loader_leaves_on_its_parents_term_and_on_no_other() -> None:
    with python(PARENT) as process:
        assert process.stdin is not None
        first, second = (int(word) for word in read_line(process).split())
        # What Slurm does to every process of a step.
        for pid in (first, second, process.pid):
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)
        wait_until(lambda: not _pending(first) and not _pending(second))
        assert is_alive(first) and is_alive(second) and process.poll() is None
        process.stdin.write("0\n")
        process.stdin.flush()
        assert read_line(process) == str(128 + signal.SIGTERM)
        assert is_alive(second)


def _pending(pid: int) -> bool:
    """Whether a TERM still waits to be read."""
    with Path(f"/proc/{pid}/status").open() as status:
        lines = dict(line.split(":", 1) for line in status if ":" in line)
    return any(int(lines[name], 16) >> (signal.SIGTERM - 1) & 1 for name in ("ShdPnd", "SigPnd"))
