"""The face of the checkpoint room: save and restore a TrainState, on one rank or on all of them together."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from resilient_launch.checkpoint.background.memory_tier import Here
from resilient_launch.checkpoint.background.saving import Background, Job
from resilient_launch.checkpoint.comparing import Expectations, OnChange, own_versions
from resilient_launch.checkpoint.foreground import publish_now
from resilient_launch.checkpoint.outcomes import Begun, OnEnd, Origin, Restored, SaveReport, Saving, Tier, Written
from resilient_launch.checkpoint.restoring import Restorer
from resilient_launch.checkpoint.store import (
    Board,
    Digesting,
    Facts,
    Lineage,
    LocalBoard,
    Rounds,
    Verdict,
    described,
    fence,
    prune,
    sweep,
)
from resilient_launch.checkpoint.train_state import Capture, TrainState
from resilient_launch.core.errors import CheckpointError, UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import Policy, newest

__all__ = ["Checkpointer", "Restored", "SaveReport", "Saving"]
_LOG = logging.getLogger(__name__)


class Checkpointer:
    """Saves to and restores from one run's checkpoints directory; made alike on every rank.

    ``board`` carries all coordination and must be shared by the ranks, with a prefix of its own for every checkpointer
    that uses one store; one rank alone needs none. ``attempt`` and ``restart`` (worker-group restart) name the
    checkpoints and must be new for every start of the training. ``allowed`` are the checkpoints listed by the attempt's
    claim; None admits all that exist, and ``passed_over`` are not to be resumed from although they are sound. ``keep``
    is how many to keep, or a retention policy, which may go by ``metrics``: what they say at a save is saved with it.
    ``save_timeout_s`` bounds one save on every rank, ``load_timeout_s`` one restore. ``begin_save`` saves with
    ``background``, which is closed with this object. ``without_rename`` is for storage that has no atomic one: the
    manifest, put last, is what publishes.

    A world size or layout other than the checkpoint's, and a code version other than the checkpoint's, raise or warn
    as ``on_topology_change`` and ``on_code_change`` say; ``allow`` are other kinds of difference to accept; a code
    version that is empty on either side is not compared.

    Not for several threads at once. Every rank must make the same calls in the same order.
    """

    def __init__(
        self,
        directory: Path,
        *,
        run_id: str = "",
        attempt: int = 0,
        restart: int = 0,
        rank: int = 0,
        world_size: int = 1,
        board: Board | None = None,
        code_version: str = "",
        keep: int | Policy = 2,
        allowed: Collection[str] | None = None,
        passed_over: Collection[str] = (),
        metrics: Mapping[str, float] | None = None,
        save_timeout_s: float = 600.0,
        load_timeout_s: float = 1800.0,
        on_topology_change: OnChange = "error",
        on_code_change: OnChange = "error",
        allow: Collection[str] = (),
        digesting: Digesting | None = None,
        background: Background | None = None,
        without_rename: bool = False,
    ) -> None:
        if board is None and world_size > 1:
            raise UsageError("a checkpointer of several ranks without a board", hint="give a StoreBoard to each")
        self._directory = directory
        self._run_id, self._attempt, self._restart = run_id, attempt, restart
        self._rank, self._world_size = rank, world_size
        self._code_version = code_version
        self._policy = newest(keep) if isinstance(keep, int) else keep
        self._save_timeout_s = save_timeout_s
        self._allow = frozenset(allow)
        self._digesting = digesting or Digesting()
        self._background, self._without_rename = background, without_rename
        self._saving: Saving | None = None
        self._rounds = Rounds(board or LocalBoard(), rank=rank, world_size=world_size)
        self._last_round: dict[str, tuple[int, int]] = {}
        self._restorer = Restorer(
            directory=directory,
            lineage=Lineage(
                run_id=run_id,
                attempt=attempt,
                allowed=None if allowed is None else frozenset(allowed),
                passed_over=passed_over,
            ),
            expectations=Expectations(
                world_size=world_size,
                code_version=code_version,
                on_topology_change=on_topology_change,
                on_code_change=on_code_change,
            ),
            here=Here(
                run_id=run_id,
                attempt=attempt,
                restart=restart,
                code_version=code_version,
                rank=rank,
                world_size=world_size,
            ),
            start=lambda what: self._rounds.start(self._round_name(what), load_timeout_s),
            prepare=self._prepare,
        )
        self._is_prepared = False
        self._metrics = metrics if metrics is not None else {}
        self._trained_before_s = 0.0
        self._started = time.monotonic()
        self._verified: set[CheckpointId] = set()
        self._resumed_from: CheckpointId | None = None
        self._last_saved: CheckpointId | None = None

    @property
    def resumed_from(self) -> CheckpointId | None:
        """The checkpoint that ``restore`` loaded; retention never removes it."""
        return self._resumed_from

    @property
    def last_saved(self) -> CheckpointId | None:
        """The newest checkpoint that this object made durable."""
        return self._last_saved

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What the last ``restore`` made of each checkpoint that it looked at, also where none was left."""
        return self._restorer.verdicts

    @property
    def origin(self) -> Origin:
        """Where the last ``restore`` took the state from, and why."""
        return self._restorer.origin

    def save(
        self,
        state: TrainState,
        *,
        reason: str = "",
        metadata: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> SaveReport:
        """Save ``state`` as the checkpoint of its step, together with all ranks; returns when it is durable.

        Raises CheckpointError on every rank when any of them failed: nothing is published then, and the next save
        works. Raises FencedError when a newer attempt has taken over the run. ``timeout_s`` replaces the configured
        bound for this one save.
        """
        begun = self._begin(state)
        return self._write(begun, self._facts(begun.capture, reason, metadata or {}), timeout_s)

    def begin_save(
        self,
        state: TrainState,
        *,
        reason: str = "",
        metadata: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        on_end: OnEnd | None = None,
        in_foreground: bool = False,
    ) -> Saving:
        """Like ``save``, but return when ``state`` is copied, and may change: the copy is made durable meanwhile.

        Waits for a save that is still in flight; none is lost. ``on_end`` is called when this one is durable or has
        failed, in another thread. ``in_foreground``, without a background, or without memory for the copy, it is over
        on return, failed or not; that need not be so on every rank. Raises CheckpointError, and publishes nothing, when
        the state can't be saved at all.
        """
        begun, background = self._begin(state), self._background
        facts, ident = self._facts(begun.capture, reason, metadata or {}), begun.id
        saving = Saving(ident)

        def staged() -> None:
            saving.staged(time.monotonic() - begun.started)
            self._saving = saving

        def finish(written: Written | CheckpointError) -> None:
            outcome: SaveReport | CheckpointError
            if isinstance(written, CheckpointError):
                outcome = written
            else:
                self._last_saved = ident
                self._verified.add(ident)
                outcome = begun.report(written, saving.staged_s)
            try:
                if on_end is not None:
                    on_end(saving, outcome)
            finally:
                # Whatever the caller's own code does, nobody waits for ever.
                saving.settle(outcome)

        with self._failing(begun.round_name):
            has_begun = (
                background is not None
                and not in_foreground
                and background.begin(
                    self._job(state.step, begun.round_name, facts, timeout_s),
                    begun.capture,
                    staged=staged,
                    finish=finish,
                    tidy=self._prune if self._rank == 0 else lambda: None,
                )
            )
        return saving if has_begun else self._save_now(begun, facts, timeout_s, on_end)

    @property
    def in_flight(self) -> Saving | None:
        """The save that was begun and is not over."""
        return self._saving if self._saving is not None and not self._saving.is_over else None

    @property
    def refusal(self) -> str:
        """Why saves are not made in the background although they should be; empty where they are."""
        return self._background.refusal if self._background is not None else ""

    def keep(self, state: TrainState) -> bool:
        """Keep a copy of ``state`` in this node's memory, for a worker group that is started again here; whether it is.

        Nothing is written and nobody waited for. Every rank must call it at the same step. Raises CheckpointError when
        the state can't be saved at all.
        """
        if self._background is None:
            return False
        capture = state.capture(self._rank, self._world_size)
        return self._background.keep(self._job(state.step, "", self._facts(capture, "memory", {})), capture)

    def warm_up(self, state: TrainState) -> None:
        """Get memory for the copies of a state like this one ready in the background, before the first is needed."""
        if self._background is not None:
            self.settle()
            self._background.warm_up(state.capture(self._rank, self._world_size))

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait for the save in flight; whether none is any more."""
        return self._background is None or self._background.join(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the save in flight, give it up after ``timeout_s``, and let go of the writer."""
        if self._background is not None:
            self._background.close(timeout_s)
            self._background = None

    def agree(self, topic: str, value: Any, timeout_s: float) -> Any:
        """Rank 0's ``value``, on every rank; a word apart from the training's own. Raises CheckpointError."""
        return self._rounds.start(self._round_name(topic), timeout_s).share("word", value)

    def restore(self, state: TrainState, *, allow: Collection[str] = ()) -> Restored | None:
        """Load the newest checkpoint that verifies into ``state``; None, and ``state`` untouched, where there is none.

        Every rank verifies what it reads and a share of the rest before anything is applied. Damage sends a checkpoint
        to quarantine and the next older one is tried. Raises CheckpointError for a checkpoint that is sound but does
        not fit: ``allow`` may name the kinds of difference to accept (missing, unexpected, shape, dtype).
        """
        found = self._restorer.restore(state, self._allow | frozenset(allow), self._background)
        if found is None:
            return None
        origin = self._restorer.origin
        if origin.tier is Tier.SHARED:
            self._verified.add(found.id)
        self._resumed_from = found.id if origin.is_durable else CheckpointId.parse(found.manifest.facts.parent or "")
        self._trained_before_s, self._started = found.manifest.facts.training_s, time.monotonic()
        return found

    def _begin(self, state: TrainState) -> Begun:
        """Collect what a save needs of the training, which must stand still from here on: nothing is copied yet."""
        started = time.monotonic()
        self.settle()
        waited_s = time.monotonic() - started
        self._prepare()
        round_name = self._round_name("save", state.step)
        with self._failing(round_name):
            capture = state.capture(self._rank, self._world_size)
        return Begun(
            id=self._ident(state.step), started=started, waited_s=waited_s, round_name=round_name, capture=capture
        )

    @contextlib.contextmanager
    def _failing(self, round_name: str) -> Iterator[None]:
        """Whatever the user's own code or a device raises here fails the save, and the others don't wait for it."""
        try:
            yield
        except Exception as error:
            if isinstance(error, CheckpointError) and self._world_size == 1:
                raise
            raise self._rounds.start(round_name, 0.0).fail(error) from error

    def _save_now(self, begun: Begun, facts: Facts, timeout_s: float | None, on_end: OnEnd | None) -> Saving:
        saving = Saving(begun.id, 0.0)
        outcome: SaveReport | CheckpointError
        try:
            outcome = self._write(begun, facts, timeout_s)
            saving.staged_s = outcome.staged_s
        except CheckpointError as error:
            outcome = error
        if on_end is not None:
            on_end(saving, outcome)
        saving.settle(outcome)
        return saving

    def _write(self, begun: Begun, facts: Facts, timeout_s: float | None) -> SaveReport:
        """Write, publish and prune, straight from the training's own memory."""
        round_ = self._rounds.start(begun.round_name, self._save_timeout_s if timeout_s is None else timeout_s)
        published = publish_now(
            self._directory,
            begun,
            round_,
            facts,
            self._digesting,
            rank=self._rank,
            world_size=self._world_size,
            without_rename=self._without_rename,
        )
        elapsed_s = time.monotonic() - begun.started
        self._last_saved = begun.id
        self._verified.add(begun.id)
        pruned = self._prune() if self._rank == 0 else ()
        return SaveReport(
            id=begun.id,
            num_bytes=published.num_bytes,
            staged_s=elapsed_s,
            durable_s=elapsed_s,
            waited_s=begun.waited_s,
            pruned=pruned,
        )

    def _ident(self, step: int) -> CheckpointId:
        return CheckpointId(attempt=self._attempt, restart=self._restart, step=step)

    def _job(self, step: int, round_name: str, facts: Facts, timeout_s: float | None = None) -> Job:
        return Job(
            directory=self._directory,
            id=self._ident(step),
            round_name=round_name,
            timeout_s=self._save_timeout_s if timeout_s is None else timeout_s,
            facts=facts,
            digesting=self._digesting,
            without_rename=self._without_rename,
        )

    def _facts(self, staged: Capture, reason: str, metadata: Mapping[str, Any]) -> Facts:
        parent = self._last_saved or self._resumed_from
        return Facts(
            run_id=self._run_id,
            parent=str(parent) if parent else None,
            world_size=self._world_size,
            layout=staged.layout,
            code_version=self._code_version,
            versions=own_versions(),
            reason=reason,
            training_s=self._trained_before_s + time.monotonic() - self._started,
            metadata={**metadata, **described(self._metrics)},
        )

    def _prepare(self) -> None:
        """Once, before the first save or restore: make the directory, and shut out writers of older attempts."""
        if self._is_prepared or self._rank != 0:
            return
        self._is_prepared = True
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            fence(self._directory, self._attempt, self._restart)
            sweep(self._directory)
        except OSError as error:
            # Restoring only needs to read; a save will say itself what is wrong with writing.
            _LOG.warning("can't tidy up %s: %s", self._directory, error)

    def _prune(self) -> tuple[CheckpointId, ...]:
        try:
            removed = prune(self._directory, self._policy, verified=self._verified, resumed_from=self._resumed_from)
        except (OSError, CheckpointError) as error:
            # The new checkpoint is safe; failing to remove an old one is no reason to stop.
            _LOG.warning("can't remove old checkpoints: %s", error)
            return ()
        self._verified.difference_update(removed)
        return tuple(removed)

    def _round_name(self, what: str, step: int = 0) -> str:
        # By step and not by a running number: ranks that fell out of step in a failed save meet again in the next one.
        last_step, tries = self._last_round.get(what, (step, 0))
        tries = tries + 1 if last_step == step else 1
        self._last_round[what] = (step, tries)
        return f"{what} {step}.{tries} of attempt {self._attempt}.{self._restart}"
