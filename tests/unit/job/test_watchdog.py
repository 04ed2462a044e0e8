"""Watchdogs of two nodes over a real store; ranks are real processes with real pages."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore

from resilient_launch.job.page import Page, Phase
from resilient_launch.job.watchdog import Callbacks, Watchdog, Watched
from resilient_launch.policy.hang import Blame, Limits

LIMITS = Limits(floor_s=1.0, ceiling_s=600.0)
SLEEPER = "import signal; print('ready', flush=True); signal.pause()"


@dataclass
class Gang:
    """Two nodes of one rank each, which stand still unless a test moves them."""

    directory: Path
    server: TCPStore
    processes: list[subprocess.Popen[str]]
    pages: list[Page]
    watchdogs: list[Watchdog] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    hangs: list[tuple[int, Blame]] = field(default_factory=list)
    lost: list[list[int]] = field(default_factory=list)
    gaps: list[dict[Phase, float]] = field(default_factory=lambda: [{}, {}])
    on_event: Callable[[dict[str, Any]], None] = lambda event: None

    def watch(self, *nodes: int, limits: Limits | None = LIMITS) -> None:
        for node in nodes:
            client = TCPStore("localhost", self.server.port, is_master=False, wait_for_workers=False)
            watched = Watched(
                node=f"n{node}",
                node_index=node,
                num_nodes=2,
                ranks=[node],
                pages=[self.pages[node]],
                page_files=[self.directory / f"r0.{node}"],
                log_dir=self.directory,
                nccl_pipes=f"{self.directory}/nccl-",
                nccl_traces=f"{self.directory}/trace-",
            )
            callbacks = Callbacks(
                emit=self._emit,
                on_hang=lambda blame, node=node: self.hangs.append((node, blame)),  # type: ignore[misc]
                on_lost_nodes=lambda nodes: self.lost.append(list(nodes)),
            )
            watchdog = Watchdog(
                PrefixStore("g", client), watched, limits=limits, gaps=self.gaps[node], callbacks=callbacks
            )
            self.watchdogs.append(watchdog)
            watchdog.start()

    def _emit(self, kind: str, fields: dict[str, Any]) -> None:
        event = {"kind": kind, **fields}
        self.events.append(event)
        self.on_event(event)

    def wait(self, condition: Callable[[], object], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, (self.events, self.hangs, self.lost)
            time.sleep(0.02)

    def beat(self) -> None:
        for page in self.pages:
            page.beat_mono = time.monotonic()


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    processes = [subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True) for _ in "ab"]
    pages = []
    for rank, process in enumerate(processes):
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        page = Page.create(tmp_path / f"r0.{rank}")
        page.pid, page.phase, page.step, page.resume_step = process.pid, Phase.STEP, 9, 0
        page.floats[Page.largest_gap_s[Phase.STEP]] = 0.1
        pages.append(page)
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    made = Gang(directory=tmp_path, server=server, processes=processes, pages=pages)
    yield made
    for watchdog in made.watchdogs:
        watchdog.stop()
    for watchdog in made.watchdogs:
        watchdog.join(30)
    for process in processes:
        process.kill()
        process.wait()


def test_a_stopped_rank_is_named_on_every_node_once_all_stacks_are_there(gang: Gang) -> None:
    os.kill(gang.processes[1].pid, signal.SIGSTOP)
    seen: list[bool] = []

    def look(event: dict[str, Any]) -> None:
        if event["status"] == "confirmed":
            seen.append(all((gang.directory / f"n{node}.{node}.stack.txt").exists() for node in (0, 1)))

    gang.on_event = look
    gang.watch(0, 1)
    gang.wait(lambda: len(gang.hangs) == 2)
    assert sorted(node for node, _ in gang.hangs) == [0, 1]
    assert {(blame.rank, blame.node) for _, blame in gang.hangs} == {(1, "n1")}
    assert [event["status"] for event in gang.events] == ["found", "confirmed"] and seen == [True]
    assert gang.events[0]["timeout_s"] == 1.0 and gang.events[0]["culprit"] == 1
    # Nothing was ended: that is the agents' part.
    assert all(process.poll() is None for process in gang.processes)


def test_the_timeout_follows_the_largest_gap_seen(gang: Gang) -> None:
    gang.pages[0].floats[Page.largest_gap_s[Phase.STEP]] = 0.5
    gang.watch(0, 1)
    gang.wait(lambda: gang.events)
    # Each node knows its own ranks' gaps; the first to give up asks all.
    assert {event["timeout_s"] for event in gang.events} <= {1.0, 2.5}


def test_the_gaps_that_were_seen_are_kept_for_the_next_group(gang: Gang) -> None:
    gang.pages[1].floats[Page.largest_gap_s[Phase.EVAL]] = 7.0
    gang.watch(0, 1, limits=Limits(floor_s=300.0, ceiling_s=600.0))
    gang.wait(lambda: all(gang.gaps))
    assert [gaps[Phase.STEP] for gaps in gang.gaps] == [0.1, 0.1]
    gang.wait(lambda: [gaps.get(Phase.EVAL) for gaps in gang.gaps] == [0.0, 7.0])


def test_a_rank_that_moves_while_stacks_are_taken_is_no_hang(gang: Gang) -> None:
    gang.on_event = lambda event: gang.beat()
    gang.watch(0, 1)
    gang.wait(lambda: len(gang.events) >= 2)
    assert [event["status"] for event in gang.events[:2]] == ["found", "withdrawn"]
    assert not gang.hangs
    # The next time it does not move.
    gang.on_event = lambda event: None
    gang.wait(lambda: len(gang.hangs) == 2)


def test_a_rank_that_is_busy_alone_is_waited_for(gang: Gang) -> None:
    gang.pages[1].phase = Phase.EVAL
    gang.watch(0, 1)
    gang.wait(lambda: gang.server.check(["g/hang/2/found"]))
    assert not gang.events and not gang.hangs
    # Evaluation was seen to take a tenth of a second, so its own time is over now.
    gang.pages[1].floats[Page.largest_gap_s[Phase.EVAL]] = 0.1
    gang.wait(lambda: len(gang.hangs) == 2)
    assert gang.hangs[0][1].rank == 1


def test_without_a_stopped_process_the_time_must_be_over_twice(gang: Gang) -> None:
    gang.watch(0, 1, limits=Limits(floor_s=3.0, ceiling_s=600.0))
    gang.wait(lambda: len(gang.hangs) == 2)
    statuses = [event["status"] for event in gang.events]
    assert statuses == ["found", "suspected", "found", "confirmed"]
    first, last = gang.events[0], gang.events[-1]
    assert first["timeout_s"] == last["timeout_s"] == 3.0 and first["idle_s"] < 6.0 < last["idle_s"]


def test_a_node_that_does_not_answer_is_named(gang: Gang) -> None:
    gang.watch(0)
    gang.wait(lambda: gang.lost)
    assert gang.lost == [[1]] and not gang.hangs


@pytest.mark.parametrize("what", ["disabled", "left", "unattached", "gone", "few steps"])
def test_what_is_not_watched(gang: Gang, what: str) -> None:
    for page, process in zip(gang.pages, gang.processes, strict=True):
        match what:
            case "left":
                page.phase = Phase.LEAVE
            case "unattached":
                page.pid, page.phase = 0, Phase.INIT
            case "gone":
                process.kill()
                process.wait()
            case "few steps":
                page.step = 2
    # Only where the steps seen are too few may the ceiling be what keeps the watchdog quiet.
    limits = Limits(floor_s=1.0, ceiling_s=600.0 if what == "few steps" else 1.0)
    gang.watch(0, 1, limits=None if what == "disabled" else limits)
    gang.watchdogs[0].join(2.0)
    assert all(watchdog.is_alive() for watchdog in gang.watchdogs)
    assert not gang.server.check(["g/hang/1/ask"])


@pytest.mark.parametrize("phase", [Phase.INIT, Phase.LEAVE])
def test_a_process_that_was_stopped_before_it_joined_or_after_its_last_step_is_found(gang: Gang, phase: Phase) -> None:
    for page in gang.pages:
        page.pid, page.phase = page.pid if phase is Phase.LEAVE else 0, phase
    gang.watch(0, 1, limits=Limits(floor_s=1.0, ceiling_s=1.0))
    gang.watchdogs[0].note_started({0: gang.processes[0].pid})
    os.kill(gang.processes[0].pid, signal.SIGSTOP)
    gang.wait(lambda: len(gang.hangs) == 2)
    assert {blame.rank for _, blame in gang.hangs} == {0}


def test_a_node_that_was_stopped_whole_does_not_take_its_own_sleep_for_a_hang(gang: Gang, tmp_path: Path) -> None:
    """The whole job may be suspended: the watchdog sleeps as long as its ranks do."""
    program = tmp_path / "agent.py"
    program.write_text(
        "import sys, time, threading, types\n"
        "from pathlib import Path\n"
        "from torch.distributed import HashStore\n"
        "from resilient_launch.job.page import Page\n"
        "from resilient_launch.job.watchdog import Callbacks, Watchdog, Watched\n"
        "from resilient_launch.policy.hang import Limits\n"
        "page = Page.open(Path(sys.argv[1]))\n"
        "watched = Watched(node='n0', node_index=0, num_nodes=1, ranks=[0], pages=[page],\n"
        "    page_files=[Path(sys.argv[1])], log_dir=Path(sys.argv[1]).parent, nccl_pipes='/x', nccl_traces='/x')\n"
        "say = lambda *words: print(*words, flush=True)\n"
        "calls = Callbacks(emit=lambda kind, fields: say(fields['status']), on_hang=say, on_lost_nodes=say)\n"
        "Watchdog(HashStore(), watched, limits=Limits(floor_s=2.0, ceiling_s=9.0), gaps={}, callbacks=calls).start()\n"
        "print('ready', flush=True)\n"
        "time.sleep(1000)\n"
    )
    page = gang.pages[0]
    command = [sys.executable, str(program), str(tmp_path / "r0.0")]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert agent.stdout is not None and agent.stdout.readline() == "ready\n"
        page.beat_mono = time.monotonic()
        os.kill(agent.pid, signal.SIGSTOP)
        time.sleep(4.0)  # what is tested is that this much time passed
        resumed_at = time.monotonic()
        os.kill(agent.pid, signal.SIGCONT)
        assert agent.stdout.readline() == "found\n"
        assert time.monotonic() - resumed_at >= 2.0
    finally:
        agent.kill()
        agent.wait()
