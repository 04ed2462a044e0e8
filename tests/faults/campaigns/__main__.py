"""``python -m tests.faults.campaigns [PART…]`` runs campaigns, ends with their counts.

Exits 1 when anything is bad, or nothing was done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable

from tests.faults.campaigns import (
    background,
    chaos,
    chaos_slurm,
    damage,
    mutations,
    power_cut,
    reordering,
    strikes,
    torch_ranks,
)
from tests.faults.campaigns.tally import StopError, Tally, say
from tests.leaving_out import is_ci

PARTS: dict[str, Callable[[Tally], None]] = {
    "crash-points": strikes.crash_points,
    "errors": strikes.errors,
    "damage": damage.damage,
    "reordering": reordering.reordering,
    "power-cuts": power_cut.power_cuts,
    "torch-ranks": torch_ranks.torch_ranks,
    "background": background.background,
    "mutations": mutations.mutations,
    "chaos-article": chaos.chaos_article,
    "chaos-quickstart": chaos.chaos_quickstart,
    "chaos-slurm": chaos_slurm.chaos_slurm,
}

NEED_STRACE = {"crash-points", "errors", "reordering", "torch-ranks", "background", "mutations"}


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.faults.campaigns", description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of: {', '.join(PARTS)}")
    options.add_argument("--form", choices=["short", "long"], default="short")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", help="one case, by the name that its failure printed")
    options.add_argument(
        "--share", type=_share, default=(0, 1), metavar="I/N", help="the I-th of N shares of the cases"
    )
    options.add_argument("--at-once", type=int, default=0, metavar="N", help="schedules played at the same time")
    options.add_argument("--json", action="store_true", help="counts and failures as one JSON object on stdout")
    options.add_argument("--first", action="store_true", help="stop at the first failure")
    given = options.parse_args()
    # Whoever ends a campaign early finds nothing mounted and nothing running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if unknown := set(given.parts) - PARTS.keys():
        options.error(f"no such part: {', '.join(sorted(unknown))}")
    tally = Tally(
        form=given.form,
        seed=given.seed,
        only=given.only,
        share=given.share,
        at_once=given.at_once,
        stops_at_first=given.first,
    )
    with contextlib.suppress(StopError):
        for part in given.parts or PARTS:
            _run(part, tally)
    for reason in tally.left_out:
        say(f"left out: {reason}")
    counts = ", ".join(f"{count} {name}" for name, count in tally.counts.items()) or "nothing was struck"
    if given.json:
        print(json.dumps(tally.to_json(), indent=1))
    else:
        print(f"{counts}; {len(tally.failures)} bad")
    is_incomplete = not tally.counts or (is_ci() and tally.left_out)
    sys.exit(1 if tally.failures or is_incomplete else 0)


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    return int(number) - 1, int(of)


def _run(part: str, tally: Tally) -> None:
    began, before = time.monotonic(), tally.counts.copy()
    if part in NEED_STRACE and not shutil.which("strace"):
        tally.left_out.append(f"{part}: there is no strace")
        return
    with tally.case(part, "the campaign itself"):
        PARTS[part](tally)
    found = ", ".join(f"{count} {name}" for name, count in (tally.counts - before).items())
    say(f"{part}: {found or 'nothing'} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
