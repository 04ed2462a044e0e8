"""The strategies that are compared, and what real life does to the best of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """How jobs share storage.

    ``turns`` False lets everybody write at once, at a speed in proportion to its nodes. ``blocking`` jobs stand still
    while they wait. ``period`` is each job's own optimum or the joint one; ``early`` lets jobs use idle storage.
    """

    name: str
    turns: bool = True
    blocking: bool = False
    order: Literal["arrival", "least_waste"] = "arrival"
    period: Literal["own", "joint"] = "own"
    early: bool = False
    period_includes_write: bool = True
    """Whether a period runs from start to start of two saves, or is the work between two."""


OBLIVIOUS = Strategy(name="oblivious", turns=False, blocking=True)
ORDERED = Strategy(name="ordered", blocking=True)
ORDERED_NONBLOCKING = Strategy(name="ordered-nonblocking")
LEAST_WASTE = Strategy(name="least-waste", order="least_waste")
STAGGERED = Strategy(name="staggered", order="least_waste", period="joint", early=True, period_includes_write=False)
PEERS = (OBLIVIOUS, ORDERED, ORDERED_NONBLOCKING, LEAST_WASTE)
ALL = (*PEERS, STAGGERED)


@dataclass(frozen=True, kw_only=True)
class Imperfections:
    """What jobs do not know, and what goes wrong with turns. The default is a perfect world."""

    prior_sigma: float = 0.0
    """Log-normal error of each job's first guess of its MTBF; failures observed since then correct it."""
    write_sigma: float = 0.0
    """Log-normal noise of each measured write time."""
    listing_age_s: float = 0.0
    """How old a directory listing may be: deciders see the queue as it was up to so long ago."""
    crash_share: float = 0.0
    """Share of saves that are lost midway with their holder, whose slot stays taken until it expires."""
    expiry_s: float = 30.0
    estimates: bool = False
    """Whether periods and order come from estimates instead of the truth."""
    shares_history: bool = False
    """Whether jobs know what the others saw of the nodes, as from a failure history that they all feed."""


PERFECT = Imperfections()
ROUGH = Imperfections(
    prior_sigma=0.7, write_sigma=0.2, listing_age_s=5.0, crash_share=0.05, estimates=True, shares_history=True
)
