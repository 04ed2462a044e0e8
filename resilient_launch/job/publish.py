"""What the run would lose, in its job's comment, for whoever has to choose a victim."""

from __future__ import annotations

import logging
import threading
import time

from resilient_launch.cluster.base import Scheduler
from resilient_launch.core.errors import RefusedError, RlaunchError
from resilient_launch.policy.victims import Published, render_comment

EVERY_S = 60.0
"""A comment is one call of the controller, which thousands of jobs share."""
log = logging.getLogger("rlaunch.agent")


class Publisher:
    """Publishes the newest durable checkpoint of one job, ``every_s`` seconds apart at least, and never twice the same.

    A site that refuses is not asked again; a controller that does not answer is, at the next checkpoint.
    """

    def __init__(
        self, scheduler: Scheduler, job_id: str, *, num_gpus: int, is_allowed: bool = True, every_s: float = EVERY_S
    ) -> None:
        self._scheduler, self._job_id, self._num_gpus, self._every_s = scheduler, job_id, num_gpus, every_s
        self._is_allowed = is_allowed
        self._published_at = float("-inf")
        self._step: int | None = None

    def offer(self, *, step: int, saved_at: float) -> None:
        """The state of ``step`` became durable at ``saved_at`` (seconds since the epoch). Costs a comparison mostly."""
        now = time.monotonic()
        if not self._is_allowed or step == self._step or now - self._published_at < self._every_s:
            return
        self._published_at, self._step = now, step
        comment = render_comment(Published(saved_at=int(saved_at), step=step, num_gpus=self._num_gpus))
        threading.Thread(target=self._publish, args=(comment,), name="rlaunch-publish", daemon=True).start()

    def _publish(self, comment: str) -> None:
        try:
            self._scheduler.set_comment(self._job_id, comment)
        except RlaunchError as error:
            log.info("the job's comment stays as it is: %s", error)
            self._is_allowed = not isinstance(error, RefusedError)
