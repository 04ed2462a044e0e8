"""Drains as the first node's agent sees them on its pages."""

from __future__ import annotations

import pytest

from resilient_launch.job.drains import Drains
from resilient_launch.job.page import Page


class Gang:
    """Two ranks whose pages are looked at ten times a second, at ten steps a second."""

    def __init__(self, drains: Drains) -> None:
        self.drains, self.pages = drains, [Page.private(), Page.private()]
        self.now, self.steps = 100.0, 0.0
        for page in self.pages:
            page.step = 0

    def train(self, seconds: float, *, speed: float = 10.0, writing: bool = False) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.steps += speed / 10
            for page in self.pages:
                page.step, page.writing = int(self.steps), 0
            # One rank's writer is enough.
            self.pages[1].writing = int(writing)
            self.drains.look(self.now, self.pages)

    def block(self, seconds: float) -> None:
        for page in self.pages:
            page.blocked_s = seconds
        self.train(seconds, speed=0.0, writing=True)


def test_a_save_in_the_background_drains_and_slows() -> None:
    drains = Drains()
    gang = Gang(drains)
    for _ in range(3):
        gang.train(20.0)
        gang.block(2.0)
        gang.train(10.0, speed=8.0, writing=True)
    gang.train(1.0)
    assert drains.drains_s == pytest.approx([10.0] * 3, abs=0.3)
    assert drains.slowdown == pytest.approx(0.2, abs=0.03)


def test_a_save_that_only_blocks_has_no_drain() -> None:
    drains = Drains()
    gang = Gang(drains)
    gang.train(20.0)
    gang.block(5.0)
    gang.train(20.0)
    assert (drains.drains_s, drains.slowdown) == ([], 0.0)


def test_what_an_earlier_attempt_measured_stands_until_there_is_better() -> None:
    drains = Drains((30.0,), 0.4)
    gang = Gang(drains)
    gang.train(20.0, writing=True)
    drains.group_started()
    gang.train(20.0)
    assert (drains.drains_s, drains.slowdown) == ([30.0], 0.4), "the group went, and its save with it"
