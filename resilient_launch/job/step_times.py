"""Compares the ranks' own work per step across the gang: every node posts its ranks' medians, the first one judges."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any, Protocol

from resilient_launch.job.agreement import KeyValueStore
from resilient_launch.job.page import Page
from resilient_launch.policy import straggler
from resilient_launch.policy.straggler import Finding

_USUAL_WINDOWS = 200
log = logging.getLogger("rlaunch.agent")


class Emit(Protocol):
    def __call__(self, kind: str, fields: dict[str, Any], /) -> None: ...


class StepTimes:
    """One node's part for one worker group. ``exchange`` is to be called at most about once a second.

    A node's newest windows live under one key that is overwritten, so the store does not grow with the run. What is
    found goes into ``straggler`` events, once for each change.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        node: str,
        node_index: int,
        num_nodes: int,
        ranks: Sequence[int],
        pages: Sequence[Page],
        emit: Emit,
    ) -> None:
        self._store, self._node, self._node_index, self._num_nodes = store, node, node_index, num_nodes
        self._ranks, self._pages, self._emit = ranks, pages, emit
        self._posted = -1
        self._judged = -1
        self._recent: deque[list[float]] = deque(maxlen=straggler.NUM_WINDOWS)
        self._middles: deque[float] = deque(maxlen=_USUAL_WINDOWS)
        self._said: list[tuple[str, tuple[int, ...]]] = []

    def exchange(self) -> None:
        """Post this node's new windows; on the first node, judge those that every node has posted."""
        newest = min(page.newest_window for page in self._pages)
        if newest <= self._posted:
            return
        slots = Page.window_medians_s
        # One slot is left out: a rank may be about to write it.
        windows = {
            str(window): [page.floats[slots[window % len(slots)]] for page in self._pages]
            for window in range(max(newest - len(slots) + 2, 0), newest + 1)
        }
        post = {"node": self._node, "ranks": list(self._ranks), "windows": windows}
        self._store.set(f"steps/{self._node_index}", json.dumps(post))
        self._posted = newest
        if self._node_index == 0:
            self._judge()

    def _judge(self) -> None:
        keys = [f"steps/{index}" for index in range(self._num_nodes)]
        if not self._store.check(keys):
            return
        posts = [json.loads(self._store.get(key)) for key in keys]
        node_of = {rank: str(post["node"]) for post in posts for rank in post["ranks"]}
        common = set.intersection(*(set(post["windows"]) for post in posts))
        for window in sorted(int(name) for name in common):
            if window <= self._judged:
                continue
            self._judged = window
            of_rank = {
                rank: value
                for post in posts
                for rank, value in zip(post["ranks"], post["windows"][str(window)], strict=True)
            }
            medians = [of_rank[rank] for rank in sorted(of_rank)]
            if min(medians) <= 0.0:
                continue
            self._recent.append(medians)
            found = straggler.judge(list(self._recent), straggler.usual(self._middles), node_of)
            self._middles.append(median(medians))
            self._say(found, window)

    def _say(self, found: Sequence[Finding], window: int) -> None:
        said: list[tuple[str, tuple[int, ...]]] = [(finding.scope, finding.ranks) for finding in found]
        new = [finding for finding, key in zip(found, said, strict=True) if key not in self._said]
        self._said = said
        for finding in new:
            names = {
                "rank": f"rank {', '.join(map(str, finding.ranks))} on {finding.nodes}",
                "node": f"node {finding.nodes}",
                "all": "everything",
            }
            log.warning("straggler: %s works %.2f times as long as usual", names[finding.scope], finding.ratio)
            fields = {"scope": finding.scope, "ranks": list(finding.ranks), "nodes": list(finding.nodes)}
            self._emit("straggler", {**fields, "ratio": round(finding.ratio, 4), "window": window})
