"""Leaving nodes that hold up all others: asked for by the configuration, and only where enough other nodes are left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from resilient_launch.core.causes import Cause, Notice


class Stragglers:
    """``may_leave`` says whether the run could go on without some nodes, and may take seconds; ``tell`` is called with
    those that it can leave, from another thread."""

    def __init__(
        self, *, enabled: bool, may_leave: Callable[[Sequence[str]], bool], tell: Callable[[Sequence[str]], None]
    ) -> None:
        self._enabled, self._may_leave, self._tell = enabled, may_leave, tell
        self.left: tuple[str, ...] = ()
        """The nodes that this attempt ends for."""

    def consider(self, scope: str, nodes: Sequence[str]) -> None:
        """Nodes were found to be slow; where everything is, leaving some helps nothing."""
        if self._enabled and scope != "all":
            threading.Thread(target=self._ask, args=(nodes,), name="rlaunch-stragglers", daemon=True).start()

    def _ask(self, nodes: Sequence[str]) -> None:
        if self._may_leave(nodes):
            self._tell(nodes)

    def leave(self, nodes: Sequence[str]) -> Notice:
        """The attempt ends for ``nodes``; the notice that it gets."""
        self.left = tuple(nodes)
        return Notice(cause=Cause.YIELDED, deadline=None, source=f"slower than all others: {', '.join(nodes)}")
