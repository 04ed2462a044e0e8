"""One process's own ticket, from the application to the end of the turn."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace

from resilient_launch.policy.stagger import Want
from resilient_launch.stagger import tickets
from resilient_launch.stagger.group import EXPIRY_S, Group, View
from resilient_launch.stagger.processes import ProcessMark
from resilient_launch.stagger.tickets import Place, Ticket

MUTEX_TRIES = 3
"""After so many vain attempts at the mutex a waiter does without it: whoever has it may be frozen."""
LONG_S = 1.0
"""A look at the directory that is older may have been overtaken while this process stood still."""


class TurnLostError(Exception):
    """The ticket is gone or has expired: nobody counts with it any more."""


class OwnTicket:
    """A ticket of this process. Not for two threads at once.

    Methods raise TurnLostError when the ticket is gone, OSError when the directory cannot be used.
    """

    def __init__(self, group: Group, run: str, want: Want, *, job_id: str = "", place: Place = "wait") -> None:
        """Take a ticket; its id and arrival are filled in here. With ``place`` hold the turn begins at once."""
        self.id = os.urandom(8).hex()
        self.place: Place = "wait"
        self._group = group
        self._mutex_refused = 0

        def content(now: float) -> bytes:
            mine = replace(want, id=self.id, arrived=now)
            return tickets.encode_ticket(
                Ticket(run=run, uid=os.getuid(), job_id=job_id, mark=ProcessMark.of_self(), want=mine)
            )

        name = tickets.ticket_name(self.id)
        self._heard = group.put(name, content)
        self.path = group.directory / name
        if place == "hold":
            self._move("hold")

    def touch(self) -> float:
        """Give a sign of life; returns the server's time.

        A turn that had expired before is given up: to come back would make one writer too many.
        """
        try:
            os.utime(self.path, follow_symlinks=False)
            now = self.path.lstat().st_mtime
        except FileNotFoundError:
            raise TurnLostError("the ticket is gone") from None
        if self.place == "hold" and now - self._heard > EXPIRY_S:
            self.release()
            raise TurnLostError(f"the turn expired: no sign of life for {now - self._heard:.0f} s")
        self._heard = now
        return now

    def try_take(self) -> tuple[bool, View]:
        """Look at the group, and take the turn if it is this ticket's; whether it was, and what was seen."""
        view = self._group.look(self.touch())
        if not self._is_next(view):
            return False, view
        with self._group.mutex() as held:
            if not held and self._group.uses_mutex and self._mutex_refused < MUTEX_TRIES:
                self._mutex_refused += 1
                return False, view
            looked = time.monotonic()
            view = self._group.look(self.touch())
            if not self._is_next(view):
                return False, view
            self._move("hold")
            if held:
                self._mutex_refused = 0
            if not held or time.monotonic() - looked > LONG_S:
                self._step_back_if_crowded()
        return self.place == "hold", view

    def release(self) -> None:
        """Give the ticket back, turn or not."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def _is_next(self, view: View) -> bool:
        """Whether a slot is left when everybody ahead has taken one."""
        ids = [entry.ticket.want.id for entry in view.waiters]
        # A listing may be too old to show one's own ticket; then nobody can tell who is ahead.
        return self.id in ids and ids.index(self.id) < view.writers - len(view.holders)

    def _move(self, place: Place) -> None:
        name = tickets.ticket_name(self.id, self._heard if place == "hold" else None)
        try:
            self.path = self.path.rename(self._group.directory / name)
        except FileNotFoundError:
            raise TurnLostError("the ticket is gone") from None
        self.place = place

    def _step_back_if_crowded(self) -> None:
        """Two may have taken the last slot at once: both step back, and try again at different times."""
        view = self._group.look(self.touch())
        if len(view.holders) > view.writers:
            self._move("wait")
