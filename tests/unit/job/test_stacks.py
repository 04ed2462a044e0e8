"""Stacks of real processes: one that waits in Python, one that is stopped, one that knows nothing of us."""

import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from resilient_launch.job import stacks
from resilient_launch.job.stacks import Target, collect, dump_nccl, innermost, state_of

WAITING = """
import sys, threading, time
from pathlib import Path
from resilient_launch.job import stacks
stacks.register(Path(sys.argv[1]))
def wait_for_ever():
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
wait_for_ever()
"""
Start = Callable[[str], tuple[int, Path]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program that says when it is ready; returns its process and dump file."""
    started: list[subprocess.Popen[str]] = []

    def launch(program: str) -> tuple[int, Path]:
        dump = tmp_path / f"r0.{len(started)}.stack"
        command = [sys.executable, "-c", program, str(dump)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process.pid, dump

    yield launch
    for process in started:
        process.kill()
        process.wait()


def wait_state(pid: int, letter: str) -> None:
    deadline = time.monotonic() + 60
    while state_of(pid) != letter:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_rank_is_described_and_none_is_harmed(start: Start, tmp_path: Path) -> None:
    waiting, dump = start(WAITING)
    stopped, other_dump = start(WAITING)
    os.kill(stopped, signal.SIGSTOP)
    wait_state(stopped, "T")
    stranger, _ = start("import time; print('ready', flush=True); time.sleep(1000)")
    # It says that it is ready before it sleeps.
    wait_state(stranger, "S")
    targets = [
        Target(rank=4, pid=waiting, dump=dump),
        Target(rank=5, pid=stopped, dump=other_dump),
        Target(rank=6, pid=stranger, dump=tmp_path / "none"),
        Target(rank=7, pid=2**22 - 1, dump=tmp_path / "none"),
    ]
    found = collect(targets, tmp_path, "n1")
    assert found.keys() == {4} and re.fullmatch(r"<string>:(9|10) wait_for_ever", found[4])
    texts = {rank: (tmp_path / f"n1.{rank}.stack.txt").read_text() for rank in (4, 5, 6, 7)}
    assert "in wait_for_ever" in texts[4] and texts[4].count("most recent call first") == 2
    assert "state T (stopped)" in texts[5] and "no answer" in texts[5]
    assert "state S" in texts[6] and "no answer" in texts[6]
    assert "is gone" in texts[7]
    assert [state_of(pid) for pid in (stopped, stranger)] == ["T", "S"] and state_of(waiting) in "RS"
    # A second look goes below the first one, and shows that look only.
    assert collect(targets[:1], tmp_path, "n1").keys() == {4}
    assert (tmp_path / "n1.4.stack.txt").read_text().count("== ") == 2


def test_a_directory_that_takes_no_file_costs_the_file_only(start: Start, tmp_path: Path) -> None:
    waiting, dump = start(WAITING)
    assert collect([Target(rank=0, pid=waiting, dump=dump)], tmp_path / "absent", "n1").keys() == {0}


def test_the_innermost_line_is_the_main_threads() -> None:
    text = (
        'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n  File "a.py", line 2 in g\n\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "b c.py", line 3 in h\n  File "d.py", line 4 in <module>\n'
    )
    assert innermost(text) == "b c.py:3 h"
    assert innermost("") == innermost("Current thread 0x2 (most recent call first):\n  <no Python frame>\n") == ""


def test_nccl_is_asked_through_its_pipe_and_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "nccl-3.pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def monitor() -> None:
        while not heard:
            word = os.read(reader, 16)
            if word:
                heard.append(word)
                (tmp_path / "trace-3").write_bytes(b"records")
            time.sleep(0.01)

    thread = threading.Thread(target=monitor)
    thread.start()
    dump_nccl(f"{tmp_path}/nccl-", f"{tmp_path}/trace-", [2, 3])
    assert (tmp_path / "trace-3").exists()
    thread.join()
    os.close(reader)
    assert heard and stat.S_ISFIFO(pipe.stat().st_mode)
    # Without a reader there is no monitor to wait for.
    dump_nccl(f"{tmp_path}/nccl-", f"{tmp_path}/absent-", [2, 3])


def test_the_signal_is_outside_the_mask() -> None:
    from resilient_launch.job.signals import NOTICE_SIGNALS

    assert signal.SIGRTMIN < stacks.STACK_SIGNAL < signal.SIGRTMAX and stacks.STACK_SIGNAL not in NOTICE_SIGNALS
