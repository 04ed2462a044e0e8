"""Node agents agree on one step at which every rank of the gang saves, over a key-value store of their own.

A round: the leader proposes step S; each participant tells its ranks to hold at S, and answers whether all of them are
still before S; when all are, the leader's word is ``final`` and every rank acts on reaching S, otherwise ``withdrawn``,
the holds are lifted and a later step is proposed. No collective is involved and a step costs one memory read, so one
agreement serves every reason to save. A rank that reaches S early waits for the word, for a bounded time.

The store is anything with the methods of ``torch.distributed.Store``; nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from resilient_launch.job.page import Action, Page, Reason

POLL_S = 0.01
SETTLE_S = 0.002
"""From asking a rank to hold to reading its step: far longer than a store takes to reach another core."""
ANSWER_TIMEOUT_S = 10.0
MAX_ROUNDS = 20


class KeyValueStore(Protocol):
    """What the agreement needs of a store: the methods of ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def wait(self, keys: list[str], timeout: timedelta) -> Any: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: list[str]) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class SaveRequest:
    """A wish for one agreed save. ``deadline`` is wall clock, 0 for none."""

    action: Action
    reason: Reason
    deadline: float = 0.0


def read(store: KeyValueStore, key: str, timeout_s: float) -> dict[str, Any] | None:
    """The JSON object under ``key``, waiting up to ``timeout_s`` for it; None when it did not come.

    Asks again and again: a timed wait on torch's store prints a warning each time it expires. Raises ConnectionError
    when the store itself is gone.
    """
    deadline = time.monotonic() + timeout_s
    try:
        while not store.check([key]):
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_S)
        return _parse(store.get(key))
    except RuntimeError as error:
        raise ConnectionError(f"the agents' store is gone: {error}") from error


def wait(store: KeyValueStore, key: str) -> dict[str, Any]:
    """The JSON object under ``key``, however long it takes: no message goes round while nothing happens.

    Raises ConnectionError when the store is gone.
    """
    try:
        store.wait([key], timedelta(days=365))
        return _parse(store.get(key))
    except RuntimeError as error:
        raise ConnectionError(f"the agents' store is gone: {error}") from error


def _parse(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ConnectionError(f"the agents' store holds something else: {data[:80]!r}")
    return value


def post(store: KeyValueStore, key: str, value: dict[str, Any]) -> None:
    """Put a JSON object under ``key``. Raises ConnectionError when the store is gone."""
    try:
        store.set(key, json.dumps(value))
    except RuntimeError as error:
        raise ConnectionError(f"the agents' store is gone: {error}") from error


def request(store: KeyValueStore, wish: SaveRequest) -> None:
    """Ask the leader for a save; any participant may, at any time."""
    try:
        number = store.add("request/count", 1)
    except RuntimeError as error:
        raise ConnectionError(f"the agents' store is gone: {error}") from error
    post(
        store,
        f"request/{number}",
        {"action": int(wish.action), "reason": int(wish.reason), "deadline": wish.deadline},
    )


def finish(store: KeyValueStore) -> None:
    """Make every thread that takes part over ``store`` end. A gone store ends them by itself."""
    with contextlib.suppress(ConnectionError):
        post(store, "over", {})
        request(store, SaveRequest(action=Action.NONE, reason=Reason.END))


def wait_until_acted(pages: Sequence[Page], timeout_s: float) -> bool:
    """Wait until every rank has begun to act on the newest final word; whether it did in time."""
    deadline = time.monotonic() + timeout_s
    while any(page.done_round < page.word for page in pages):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


class Participant(threading.Thread):
    """Takes part in every round for the ranks of one node.

    ``on_stop`` is called once, with the agreed step, when a final word tells the ranks to stop; the step is None when
    no rank of the gang had begun, so that nothing is lost by ending them at once. ``on_event`` gets (status, round,
    step, reason). ``on_lost`` is called when the store is gone.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        index: int,
        pages: Sequence[Page],
        on_stop: Callable[[int | None], None],
        on_event: Callable[[str, int, int, str], None],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(name="rlaunch-agreement", daemon=True)
        self._store, self._index, self._pages = store, index, pages
        self._on_stop, self._on_event, self._on_lost = on_stop, on_event, on_lost

    def run(self) -> None:
        number = 1
        try:
            while True:
                proposal = wait(self._store, f"round/{number}/propose")
                if proposal["action"] == Action.NONE:
                    return
                self._take_part(number, proposal)
                number += 1
        except ConnectionError:
            self._on_lost()

    def _take_part(self, number: int, proposal: dict[str, Any]) -> None:
        step, reason = int(proposal["step"]), Reason(proposal["reason"])
        if not wait_until_acted(self._pages, ANSWER_TIMEOUT_S / 2):
            # A hold at a new step would make a rank pass the step it was already told to act at.
            post(self._store, f"round/{number}/answer/{self._index}", {"reached": step})
            return
        for page in self._pages:
            page.hold = step
            page.hold_round = number
        time.sleep(SETTLE_S)
        reached = max(page.step for page in self._pages)
        post(self._store, f"round/{number}/answer/{self._index}", {"reached": reached})
        word = read(self._store, f"round/{number}/word", ANSWER_TIMEOUT_S + 5.0)
        status = "lost" if word is None else str(word["status"])
        if status == "final":
            for page in self._pages:
                page.action, page.reason, page.deadline = proposal["action"], reason, proposal["deadline"]
                page.word = number
        else:
            for page in self._pages:
                page.hold = -1
        self._on_event(status, number, step, reason.name.lower())
        if status in ("final", "unstarted") and proposal["action"] == Action.SAVE_AND_STOP:
            self._on_stop(step if status == "final" else None)


class Leader(threading.Thread):
    """Turns requests into rounds, one at a time. Runs beside the participant of index 0."""

    def __init__(self, store: KeyValueStore, *, num_participants: int, pages: Sequence[Page]) -> None:
        super().__init__(name="rlaunch-leader", daemon=True)
        self._store, self._num_participants, self._pages = store, num_participants, pages
        self._round = 0

    def run(self) -> None:
        number = 1
        # The participant beside us reports a lost store.
        with contextlib.suppress(ConnectionError):
            while True:
                wish = wait(self._store, f"request/{number}")
                number += 1
                if self._is_over():
                    self._round += 1
                    post(self._store, f"round/{self._round}/propose", {"action": Action.NONE})
                    return
                self._agree(wish)

    def _is_over(self) -> bool:
        return self._store.check(["over"])

    def _agree(self, wish: dict[str, Any]) -> None:
        while not wait_until_acted(self._pages, 1.0):
            if self._is_over():
                return
        reached = max(page.step for page in self._pages)
        margin = self._margin(0.02)
        for _ in range(MAX_ROUNDS):
            began = time.monotonic()
            self._round += 1
            # Nobody has begun, as far as this node knows: hold everyone at their very first boundary.
            step = reached + margin if reached >= 0 else 0
            post(self._store, f"round/{self._round}/propose", {**wish, "step": step})
            answers = self._answers()
            if answers is not None and all(answer < 0 for answer in answers):
                status = "unstarted" if wish["action"] == Action.SAVE_AND_STOP else "withdrawn"
            elif answers is not None and all(answer < step for answer in answers):
                status = "final"
            else:
                status = "withdrawn"
            post(self._store, f"round/{self._round}/word", {"status": status})
            # Withdrawn with nobody begun: there is nothing to save yet, and nobody asked to stop.
            if status != "withdrawn" or (answers is not None and max(answers) < 0) or self._is_over():
                return
            reached = max(answers) if answers is not None else max(page.step for page in self._pages)
            margin = 2 * margin + self._margin(time.monotonic() - began)

    def _answers(self) -> list[int] | None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        found = []
        for index in range(self._num_participants):
            answer = read(self._store, f"round/{self._round}/answer/{index}", deadline - time.monotonic())
            if answer is None:
                return None
            found.append(int(answer["reached"]))
        return found

    def _margin(self, round_s: float) -> int:
        """How many steps ahead to propose, so that a round is over before any rank gets there."""
        step_s = max((page.step_s for page in self._pages), default=0.0)
        return 1 if step_s <= 0 else 1 + min(int(2 * round_s / step_s), 10_000)
