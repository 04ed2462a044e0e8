"""Watches the ranks of one worker group: finds a hang, has stacks collected on every node, and names the culprit.

One thread on each node looks at its ranks' pages. The node that sees a rank stand still for too long asks all the
others how theirs stand; the first node's thread decides. Only when every node has collected stacks, nothing has moved
meanwhile, and either a process is stopped or the time was over twice, is the group ended, on all nodes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resilient_launch.job import agreement, stacks
from resilient_launch.job.agreement import KeyValueStore
from resilient_launch.job.page import Page, Phase
from resilient_launch.job.step_times import StepTimes
from resilient_launch.policy import hang
from resilient_launch.policy.hang import Blame, RankView

LOOK_S = 1.0
CLOSE_LOOK_S = 0.25
"""Between looks once a rank has stood still for half of the shortest timeout: a hang is found in time, cheaply."""
ANSWER_TIMEOUT_S = 5.0
"""How long a node's agent may take to say how its ranks stand."""
STACKS_TIMEOUT_S = 20.0
LONGEST_PAUSE_S = 30.0
SLEPT_S = 3.0
"""A look that comes so late means that this whole node was stopped or starved, its ranks included."""
Emit = Callable[[str, dict[str, Any]], None]
log = logging.getLogger("rlaunch.agent")


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One worker group as its node's watchdog knows it.

    ``ranks`` are global and in the order of ``pages``. NCCL's traces are asked for through files ``nccl_pipes`` + rank
    + ``.pipe`` and land in ``nccl_traces`` + rank.
    """

    node: str
    node_index: int
    num_nodes: int
    ranks: Sequence[int]
    pages: Sequence[Page]
    page_files: Sequence[Path]
    log_dir: Path
    nccl_pipes: str
    nccl_traces: str


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Whom the watchdog tells: ``emit`` records an event, ``on_hang`` ends the group, ``on_lost_nodes`` the attempt."""

    emit: Emit
    on_hang: Callable[[Blame], None]
    on_lost_nodes: Callable[[Sequence[int]], None]


class Watchdog(threading.Thread):
    """Watches until ``stop`` is called, the group is ended for a hang, or the store is gone.

    ``gaps`` are the largest gaps seen in earlier groups of this attempt, by phase; it is brought up to date.
    ``limits`` None leaves hangs alone and compares step times only.
    """

    def __init__(
        self,
        store: KeyValueStore,
        watched: Watched,
        *,
        limits: hang.Limits | None,
        gaps: dict[Phase, float],
        callbacks: Callbacks,
    ) -> None:
        super().__init__(name="rlaunch-watchdog", daemon=True)
        self._store, self._watched, self._limits, self._gaps = store, watched, limits, gaps
        self._callbacks = callbacks
        self._ended = threading.Event()
        self._has_stepped = gaps.get(Phase.STEP, 0.0) > 0.0
        self._pids: Mapping[int, int] = {}
        self._round = 1
        self._look_s, self._pause_s, self._ask_again_at = LOOK_S, LOOK_S, 0.0
        self._awake_since = self._looked_at = time.monotonic()
        self._step_times = StepTimes(
            store,
            node=watched.node,
            node_index=watched.node_index,
            num_nodes=watched.num_nodes,
            ranks=watched.ranks,
            pages=watched.pages,
            emit=callbacks.emit,
        )

    def stop(self) -> None:
        """End the watch: the group has ended. Safe from any thread."""
        self._ended.set()

    def note_started(self, pids: Mapping[int, int]) -> None:
        """The processes of the group's ranks on this node, which have not joined yet. Safe from any thread."""
        self._pids = dict(pids)

    def run(self) -> None:
        try:
            while not self._ended.wait(self._look_s):
                if self._limits is not None and self._find_hang():
                    return
                self._step_times.exchange()
        except (ConnectionError, RuntimeError):
            # The participant beside us reports a lost store.
            log.debug("the watch ends: the agents' store is gone")

    def _find_hang(self) -> bool:
        """Look once, and take part in a round if any node asks for one. Whether the group is to be ended."""
        is_late = self._may_be_late() and any(view.is_late for view in self._look())
        if not is_late:
            self._pause_s, self._ask_again_at = LOOK_S, 0.0
        if is_late and self._looked_at >= self._ask_again_at:
            self._store.set(self._key("ask"), "{}")
        elif not self._store.check([self._key("ask")]):
            return False
        if self._hold_round():
            return True
        self._round += 1
        # Somebody may be busy for long, evaluating alone: ask less and less often.
        self._ask_again_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return False

    def _hold_round(self) -> bool:
        is_first = self._watched.node_index == 0
        self._post("views", self._look())
        if is_first:
            views, missing = self._gather("views", ANSWER_TIMEOUT_S)
            found = hang.is_hung(views)
            if found:
                self._tell("found", hang.blame(views), views)
            agreement.post(self._store, self._key("found"), {"found": found, "missing": missing})
        word = agreement.read(self._store, self._key("found"), 2 * ANSWER_TIMEOUT_S)
        if word is None or not word["found"]:
            return False
        watched = self._watched
        stacks.dump_nccl(watched.nccl_pipes, watched.nccl_traces, watched.ranks)
        locations = stacks.collect(self._targets(), watched.log_dir, watched.node)
        self._post("after", self._look(locations))
        if is_first:
            self._judge(word["missing"])
        end = agreement.read(self._store, self._key("end"), STACKS_TIMEOUT_S + ANSWER_TIMEOUT_S)
        if end is None or not end["ended"] or self._ended.is_set():
            self._pause_s = max(self._pause_s, end["wait_s"] if end else 0.0)
            return False
        if is_first and end["missing"]:
            self._callbacks.on_lost_nodes(end["missing"])
        else:
            self._callbacks.on_hang(Blame(rank=end["rank"], node=end["node"], why=end["why"]))
        return True

    def _judge(self, missing: Sequence[int]) -> None:
        """On the first node, once every node has its stacks: whether it still stands, and who is to blame."""
        views, lost = self._gather("after", STACKS_TIMEOUT_S, but=missing)
        culprit = hang.blame(views)
        lost = sorted({*missing, *lost})
        hung = hang.is_hung(views)
        wait_s = hang.seconds_to_proof(views) if hung and not lost else 0.0
        self._tell("suspected" if wait_s else "confirmed" if hung else "withdrawn", culprit, views)
        word = {"ended": hung and not wait_s, "wait_s": wait_s, "missing": lost, **asdict(culprit)}
        agreement.post(self._store, self._key("end"), word)

    def _tell(self, status: str, culprit: Blame, views: Sequence[RankView]) -> None:
        worst = max(views, key=lambda view: view.idle_s - view.timeout_s)
        idle = {"idle_s": round(worst.idle_s, 3), "timeout_s": round(worst.timeout_s, 3), "phase": worst.phase}
        named = {"culprit": culprit.rank, "culprit_node": culprit.node, "why": culprit.why}
        self._callbacks.emit("hang", {"status": status, **named, "step": worst.step, **idle})

    def _may_be_late(self) -> bool:
        """Whether any rank has stood still for as long as the shortest timeout: seldom, so no more is asked before."""
        self._note_time()
        assert self._limits is not None
        least_s = min(self._limits.floor_s, self._limits.ceiling_s)
        for page in self._watched.pages:
            # All that is kept of a group whose pages are gone by the time that its successor is watched.
            for phase in Phase:
                self._gaps[phase] = max(self._gaps.get(phase, 0.0), page.floats[page.largest_gap_s[phase]])
        idle_s = max(self._idle_s(page) for page in self._watched.pages)
        self._look_s = CLOSE_LOOK_S if idle_s > least_s / 2 else LOOK_S
        return idle_s > least_s

    def _note_time(self) -> None:
        now = time.monotonic()
        if now - self._looked_at > SLEPT_S:
            self._awake_since = now
        self._looked_at = now

    def _idle_s(self, page: Page) -> float:
        return max(self._looked_at - max(page.beat_mono, self._awake_since), 0.0)

    def _look(self, locations: Mapping[int, str] | None = None) -> list[RankView]:
        if locations is None:
            self._note_time()
        else:
            # What took long was to collect the stacks.
            self._looked_at = time.monotonic()
        return [
            self._view(rank, page, (locations or {}).get(rank, ""))
            for rank, page in zip(self._watched.ranks, self._watched.pages, strict=True)
        ]

    def _view(self, rank: int, page: Page, location: str) -> RankView:
        phase, pid = Phase(page.phase), page.pid
        process = pid or self._pids.get(rank, 0)
        # Until a rank has a process, it is taken for one that sleeps.
        state = stacks.state_of(process) if process else "S"
        assert self._limits is not None
        timeout_s = hang.timeout_s(
            phase.name.lower(),
            largest_gap_s=max(self._gaps.get(phase, 0.0), page.floats[page.largest_gap_s[phase]]),
            num_gaps=hang.WARM_UP_GAPS if self._has_stepped else page.step - max(page.resume_step, 0),
            limits=self._limits,
            is_stopped=state == "T",
        )
        return RankView(
            rank=rank,
            node=self._watched.node,
            phase=phase.name.lower(),
            step=page.step,
            idle_s=self._idle_s(page),
            timeout_s=timeout_s,
            state=state,
            attached=bool(pid),
            location=location,
        )

    def _targets(self) -> list[stacks.Target]:
        watched = self._watched
        return [
            stacks.Target(rank=rank, pid=page.pid, dump=file.with_name(f"{file.name}.stack"))
            for rank, page, file in zip(watched.ranks, watched.pages, watched.page_files, strict=True)
            if page.pid
        ]

    def _key(self, word: str) -> str:
        return f"hang/{self._round}/{word}"

    def _post(self, word: str, views: Sequence[RankView]) -> None:
        value = {"views": [asdict(view) for view in views]}
        agreement.post(self._store, self._key(f"{word}/{self._watched.node_index}"), value)

    def _gather(self, word: str, timeout_s: float, *, but: Sequence[int] = ()) -> tuple[list[RankView], list[int]]:
        """Every node's views, and the nodes that gave none in time."""
        deadline = time.monotonic() + timeout_s
        views: list[RankView] = []
        missing = []
        for index in range(self._watched.num_nodes):
            key = self._key(f"{word}/{index}")
            answer = None if index in but else agreement.read(self._store, key, deadline - time.monotonic())
            if answer is None:
                missing.append(index)
            else:
                views.extend(RankView(**view) for view in answer["views"])
        return views, missing
