"""Waiting for a turn in a thread of its own, so that whoever waits goes on with its work meanwhile."""

from __future__ import annotations

import logging
import random
import threading
from enum import StrEnum

from resilient_launch.policy import stagger
from resilient_launch.policy.stagger import Want
from resilient_launch.stagger.group import Group, View
from resilient_launch.stagger.ticket import OwnTicket, TurnLostError
from resilient_launch.stagger.tickets import Member, Place

HEARTBEAT_S = 5.0
RETRY_S = 5.0
log = logging.getLogger("rlaunch.stagger")


class TurnState(StrEnum):
    """Where a turn stands."""

    WAITING = "waiting"
    GRANTED = "granted"
    LOST = "lost"
    """It was granted and has expired, or its ticket was removed."""
    OVER = "over"


class Turn(threading.Thread):
    """Applies for a turn, waits for it, keeps it alive until ``release``. Never raises and never blocks its user.

    A daemon thread: on a mount that hangs it hangs alone. While the directory cannot be used the state stays
    ``waiting``; how long to put up with that is the user's to decide.
    """

    def __init__(self, group: Group, run: str, want: Want, *, job_id: str = "", place: Place = "wait") -> None:
        super().__init__(name="rlaunch-turn", daemon=True)
        self._group, self._run, self._want, self._job_id, self._place = group, run, want, job_id, place
        self._wake = threading.Event()
        self._member: Member | None = None
        self.state = TurnState.WAITING
        self.view: View | None = None
        """The group as this turn last saw it."""
        self.granted = threading.Event()
        self.problem = ""
        """What the directory's last error was."""

    @property
    def num_beside(self) -> int:
        """How many held a turn when this one was granted, itself included."""
        return len(self.view.holders) + (self._place == "wait") if self.view is not None else 1

    def release(self, member: Member | None = None) -> None:
        """End the turn or the wait, and publish what is now known of the run. Returns at once."""
        self._member = member
        self.state = TurnState.OVER
        self._wake.set()

    def run(self) -> None:
        ticket: OwnTicket | None = None
        while not self._wake.is_set():
            delay_s = RETRY_S
            try:
                if ticket is None:
                    self._group.prepare()
                    ticket = OwnTicket(self._group, self._run, self._want, job_id=self._job_id, place=self._place)
                delay_s = self._keep(ticket)
                self.problem = ""
            except TurnLostError as error:
                ticket = None
                if self.granted.is_set():
                    log.info("turn to save: %s", error)
                    self._set(TurnState.LOST)
                    break
            except OSError as error:
                self._complain(error)
            self._wake.wait(delay_s)
        self._wake.wait()
        try:
            if ticket is not None:
                ticket.release()
            if self._member is not None:
                self._group.publish(self._member)
        except OSError as error:
            self._complain(error)

    def _keep(self, ticket: OwnTicket) -> float:
        """Give a sign of life, take the turn if it has come; returns when to do so again."""
        if self.granted.is_set():
            ticket.touch()
            return HEARTBEAT_S
        if self._place == "hold":
            self._grant()
            return HEARTBEAT_S
        is_taken, view = ticket.try_take()
        self.view = view
        if is_taken:
            self._grant()
            return HEARTBEAT_S
        # Measured turns alone: what a first ticket says of its own may be far off.
        hold_s = stagger.mean_hold_s(view.samples)
        position, lapse_s = view.position(ticket.id), view.lapse_s(ticket.id)
        delay_s = stagger.poll_delay_s(position, hold_s, view.writers, random.random(), lapse_s)
        while delay_s > HEARTBEAT_S and not self._wake.wait(HEARTBEAT_S):
            delay_s -= HEARTBEAT_S
            ticket.touch()
        return delay_s

    def _grant(self) -> None:
        self._set(TurnState.GRANTED)
        self.granted.set()

    def _set(self, state: TurnState) -> None:
        if self.state is not TurnState.OVER:
            self.state = state

    def _complain(self, error: OSError) -> None:
        problem = error.strerror or str(error)
        if problem != self.problem:
            log.warning("turns at %s: %s", self._group.directory, problem)
        self.problem = problem
