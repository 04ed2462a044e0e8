"""How the ranks of one node failed, read from what they left: exit codes, error files, the ends of their logs."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from resilient_launch.checkpoint.store import published
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.causes import Cause
from resilient_launch.core.errors import CheckpointError
from resilient_launch.core.paths import RunPaths
from resilient_launch.job.lives import read_lives
from resilient_launch.job.page import Page
from resilient_launch.policy import cause as cause_policy
from resilient_launch.policy.cause import RankFailure
from resilient_launch.policy.requeue import Life, Limits, stuck_at

_ERROR_TAIL_CHARS = 4000


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """How one node's part of an attempt ended. Steps are counts of completed ones.

    ``first_rank`` failed first on this node, at ``failed_at``; ``error`` is what it had to say, ``may_be_machine``
    whether the node can be at fault, ``user_error`` why it would come back for certain. ``blame`` is the cause where
    the node's agent knows more than that its workers failed, ``suspects`` the nodes that it knows to be at fault.
    """

    node: str
    finished: bool
    end_step: int | None
    saved_step: int | None
    first_rank: int | None
    error: str
    failed_at: float | None = None
    may_be_machine: bool = False
    user_error: str = ""
    every_rank_failed: bool = False
    blame: Cause | None = None
    suspects: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeFailures:
    """The ranks of one node that ended by themselves, in one worker group; ``texts`` is what each left, by rank."""

    paths: RunPaths
    attempt: int
    node: str
    ranks: tuple[RankFailure, ...]
    texts: Mapping[int, str]

    @classmethod
    def read(cls, paths: RunPaths, attempt: int, node: str, restart: int, exits: Mapping[int, int]) -> NodeFailures:
        """``exits`` is rank -> exit code of those that did not end well by themselves."""
        logs = paths.attempt_logs(attempt)
        ranks, texts = [], {}
        for rank, code in exits.items():
            if not code:
                continue
            error_file = logs / f"{node}.{rank}.r{restart}.error.json"
            texts[rank] = read_error(error_file, logs / f"{node}.{rank}.log")
            at = None
            with contextlib.suppress(OSError):
                at = error_file.stat().st_mtime
            error = cause_policy.last_error(texts[rank]) if code > 0 else ""
            ranks.append(RankFailure(rank=rank, exit_code=code, error=error, at=at))
        return cls(paths=paths, attempt=attempt, node=node, ranks=tuple(ranks), texts=texts)

    @property
    def first(self) -> RankFailure | None:
        """The rank that failed first."""
        return cause_policy.first_failure(self.ranks)

    def explain(self) -> str:
        """What the first rank that failed had to say."""
        first = self.first
        if first is None:
            return ""
        code = first.exit_code
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"rank {first.rank} on {self.node} {end}\n{self.texts[first.rank]}".rstrip()

    def report(
        self,
        *,
        finished: bool,
        end_step: int | None,
        saved_step: int | None,
        num_ranks: int,
        error: str,
        blame: Cause | None,
        blame_why: str,
        blame_rank: int | None,
        suspects: tuple[str, ...] = (),
    ) -> NodeReport:
        """The node's report, with what these failures add to it.

        ``error`` is for a node where no rank failed; ``blame``, its why and its rank are what the agent knows better.
        """
        first = self.first
        first_rank = first.rank if first else None
        return NodeReport(
            node=self.node,
            finished=finished,
            end_step=end_step,
            saved_step=saved_step,
            first_rank=blame_rank if blame_rank is not None else first_rank,
            error=blame_why or (self.explain() if first else error),
            failed_at=first.at if first else None,
            may_be_machine=first is not None and cause_policy.may_be_machine(first),
            user_error=self.user_error(num_ranks),
            every_rank_failed=len(self.ranks) == num_ranks,
            blame=blame,
            suspects=suspects,
        )

    def user_error(self, num_ranks: int) -> str:
        """Why this would come back every time, if it happened before the run's first step; empty: not certain."""
        return cause_policy.user_error(self.ranks, num_ranks=num_ranks)

    def why_no_restart(self, config: LaunchConfig, restart: int, pages: Sequence[Page]) -> str:
        """Why starting another worker group in this attempt is useless; empty when it may help."""
        earlier = read_lives(self.paths, until=(self.attempt, restart))
        reached = max((page.step for page in pages), default=-1)
        has_stepped = reached > 0 or any((life.end_step or 0) > 0 for life in earlier)
        if not has_stepped and (why := self.user_error(len(pages))):
            return why
        this = [
            life
            for life in read_lives(self.paths, until=(self.attempt, restart + 1))
            if (life.attempt, life.restart) == (self.attempt, restart)
        ]
        now = Life(
            attempt=self.attempt,
            restart=restart,
            checkpoint=this[0].checkpoint if this else None,
            resume_step=this[0].resume_step if this else None,
            end_step=reached if reached >= 0 else None,
            has_saved=bool(this) and this[0].has_saved,
            has_failed=True,
        )
        return stuck_at([*earlier, now], checkpoint_names(self.paths), limits=limits_of(config))


def limits_of(config: LaunchConfig) -> Limits:
    """The configuration's limits on failures."""
    return Limits(max_failures=config.restart.max_crashes, same_step=config.restart.same_step)


def checkpoint_names(paths: RunPaths) -> list[str]:
    """What a resume could choose from; empty where that can't be listed."""
    try:
        return [str(ident) for ident in published(paths.checkpoints)]
    except CheckpointError:
        return []


def read_error(error_file: Path, log_file: Path) -> str:
    """What a failed rank left: the message of its error file, or the end of its log."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        message = json.loads(error_file.read_bytes())["message"]
        text = message if isinstance(message, str) else message["extraInfo"]["py_callstack"]
        return str(text)[-_ERROR_TAIL_CHARS:]
    with contextlib.suppress(OSError):
        return log_file.read_bytes()[-_ERROR_TAIL_CHARS:].decode(errors="replace")
    return ""
