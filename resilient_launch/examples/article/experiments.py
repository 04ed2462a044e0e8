"""Experiments A to F: the training in real processes, really crashed and killed, and what came out each time."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from resilient_launch.checkpoint.store import published
from resilient_launch.core.errors import RlaunchError
from resilient_launch.examples.article.train import CRASHED
from resilient_launch.examples.article.trainer import PIECES

STEPS, EVERY = 600, 50
CRASHES = (130, 410)
DROP_AT = 275
TORN_AT = 300
DAMAGED_AT = 400
MAX_KILLS = 5
KILLED_STEP_S = 0.003
_TRAINING = "resilient_launch.examples.article.train"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process: the step it began at (None: it was ended before it said), its exit code, its last word."""

    start_step: int | None
    exit_code: int
    summary: dict[str, object] | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether an experiment came out as it must, with every way in which it did not."""

    name: str
    problems: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.problems


@dataclass
class _Checks:
    name: str
    problems: list[str] = field(default_factory=list)

    def expect(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            self.problems.append(f"{what} is {found!r}, not {wanted!r}")

    def verdict(self) -> Verdict:
        return Verdict(name=self.name, problems=tuple(self.problems))


class Experiments:
    """Runs them below ``directory``; ``say`` gets every line of the story. ``seed`` is for the moments of the kills."""

    def __init__(self, directory: Path, *, say: Say, seed: int = 1) -> None:
        self._directory, self._say = directory, say
        self._random = random.Random(seed)
        self._reference: dict[str, object] = {}

    def run(self) -> list[Verdict]:
        """All of them, in order."""
        return [
            self.reference(),
            self.crashes(),
            self.kills(),
            *self.discards(),
            self.torn_save("naive"),
            self.torn_save("atomic"),
            self.damage(),
        ]

    def reference(self) -> Verdict:
        """A: the uninterrupted run, whose digest the others are held against."""
        self._say("A. reference: uninterrupted run")
        attempts = [self._train("a", 0)]
        self._tell(attempts)
        checks = _Checks("A reference")
        checks.expect("exit code", attempts[0].exit_code, 0)
        self._reference = attempts[0].summary or {}
        self._say(f"   {self._reference}")
        checks.expect("final step", self._reference.get("final_step"), STEPS)
        return checks.verdict()

    def crashes(self) -> Verdict:
        """B: crashes at 130 and 410 resume from 100 and 400."""
        self._say(f"B. crash at steps {CRASHES[0]} and {CRASHES[1]} (no checkpoint at the crash step), then resume")
        attempts = [self._train("b", number, "--crash-at", str(step)) for number, step in enumerate(CRASHES)]
        attempts.append(self._train("b", len(CRASHES)))
        checks = _Checks("B crashes")
        checks.expect("start steps", [each.start_step for each in attempts], [0, 100, 400])
        checks.expect("exit codes", [each.exit_code for each in attempts], [CRASHED, CRASHED, 0])
        return self._conclude(checks, attempts, is_identical=True)

    def kills(self) -> Verdict:
        """C: SIGKILL at random moments until it finishes."""
        self._say(f"C. SIGKILL at random moments (each step sleeps {1000 * KILLED_STEP_S:g} ms)")
        attempts: list[Attempt] = []
        while not attempts or attempts[-1].exit_code:
            kill_after_s = self._random.uniform(0.05, 1.2) if len(attempts) < MAX_KILLS else None
            attempts.append(self._train("c", len(attempts), "--step-s", str(KILLED_STEP_S), kill_after_s=kill_after_s))
            if attempts[-1].exit_code not in (0, -signal.SIGKILL):
                break
        checks = _Checks("C kills")
        checks.expect("last exit code", attempts[-1].exit_code, 0)
        killed = [each for each in attempts if each.exit_code == -signal.SIGKILL]
        checks.expect("a process was killed", bool(killed), True)
        return self._conclude(checks, attempts, is_identical=True)

    def discards(self) -> list[Verdict]:
        """D: resume with one piece of the state discarded; each must show, or the comparison would be blind."""
        self._say(f"D. resume after a crash at step {DROP_AT}, but discard one piece of the saved state")
        crashed = self._train("d", 0, "--crash-at", str(DROP_AT))
        verdicts = []
        for piece in PIECES:
            shutil.copytree(self._directory / "d", self._directory / f"d-{piece}")
            attempt = self._train(f"d-{piece}", 1, "--discard", piece)
            checks = _Checks(f"D discard {piece}")
            checks.expect("exit codes", (crashed.exit_code, attempt.exit_code), (CRASHED, 0))
            checks.expect("start step", attempt.start_step, 0 if piece == "step" else 250)
            self._say(f"   discard {piece:4}: {attempt.summary} | matches reference: {self._matches(attempt)}")
            checks.expect("matches reference", self._matches(attempt), False)
            verdicts.append(checks.verdict())
        return verdicts

    def torn_save(self, writer: str) -> Verdict:
        """E: a crash in the save of step 300, after two of four shards, with either writer."""
        name = f"e-{writer}"
        self._say(f"E. crash while saving step {TORN_AT} (after 2 of 4 shards), {writer} writer")
        crash = ("--crash-in-save", str(TORN_AT))
        attempts = [self._train(name, 0, *crash, "--writer", writer)]
        if writer == "atomic":
            left = sorted(path.name for path in (self._directory / name).iterdir())
            self._say(f"   directory right after the crash: {left}")
        attempts.append(self._train(name, 1, "--writer", writer))
        checks = _Checks(f"E {writer} writer")
        checks.expect("exit codes", [each.exit_code for each in attempts], [CRASHED, 0])
        checks.expect("start steps", [each.start_step for each in attempts], [0, 250])
        return self._conclude(checks, attempts, is_identical=writer == "atomic")

    def damage(self) -> Verdict:
        """F: one byte of a finished checkpoint is flipped: it is set aside and the one before it is used."""
        self._say(f"F. a finished checkpoint is damaged (one byte of a shard of step {DAMAGED_AT} is flipped)")
        attempts = [self._train("f", 0, "--crash-at", str(CRASHES[-1]))]
        directory = self._directory / "f"
        newest = published(directory)[0]
        shard = directory / str(newest) / "shard-W1.bin"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        attempts.append(self._train("f", 1))
        quarantined = sorted(path.name for path in directory.glob("*.corrupt"))
        self._say(f"   quarantined: {quarantined}")
        checks = _Checks("F damage")
        checks.expect("the damaged step", newest.step, DAMAGED_AT)
        checks.expect("start steps", [each.start_step for each in attempts], [0, DAMAGED_AT - EVERY])
        checks.expect("quarantined", quarantined, [f"{newest}.corrupt"])
        return self._conclude(checks, attempts, is_identical=True)

    def _conclude(self, checks: _Checks, attempts: Sequence[Attempt], *, is_identical: bool) -> Verdict:
        self._tell(attempts)
        matches = self._matches(attempts[-1])
        self._say(f"   {attempts[-1].summary} | matches reference: {matches}")
        checks.expect("matches reference", matches, is_identical)
        return checks.verdict()

    def _tell(self, attempts: Sequence[Attempt]) -> None:
        for number, each in enumerate(attempts, start=1):
            start = "ended before it began" if each.start_step is None else f"start step={each.start_step}"
            self._say(f"   attempt {number}: {start} -> exit {each.exit_code}")

    def _matches(self, attempt: Attempt) -> bool:
        return attempt.summary is not None and attempt.summary == self._reference

    def _train(self, name: str, number: int, *options: str, kill_after_s: float | None = None) -> Attempt:
        """One process. ``kill_after_s`` counts from its first word."""
        argv = [sys.executable, "-m", _TRAINING, "--directory", str(self._directory / name), "--attempt", str(number)]
        argv += ["--steps", str(STEPS), "--every", str(EVERY), *options]
        errors = self._directory / f"{name}.{number}.err"
        with (
            errors.open("w") as stderr,
            subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
        ):
            assert process.stdout is not None
            first = process.stdout.readline()
            if kill_after_s is not None:
                time.sleep(kill_after_s)
                process.kill()
            rest = process.stdout.read().splitlines()
            code = process.wait()
        if code not in (0, CRASHED, -signal.SIGKILL):
            raise RlaunchError(f"training process of experiment {name!r}", why=f"exited with {code}", where=str(errors))
        start = int(first.split("start step=")[1].split()[0]) if first.startswith("start step=") else None
        return Attempt(start_step=start, exit_code=code, summary=json.loads(rest[-1]) if code == 0 and rest else None)
