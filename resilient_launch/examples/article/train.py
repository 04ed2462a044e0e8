"""The training itself. It starts in half a second and needs no torch in its own process.

Under rlaunch, as ``module: resilient_launch.examples.article.train`` with ``args: [--steps, 600, --step-s, 0.003]``,
it is one worker whose final state has a digest that no interruption changes. On its own it saves into ``--directory``,
and crashes where it is told to: that is what the experiments run.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import resilient_launch as rl
from resilient_launch.checkpoint.arrays import ArrayCheckpointer
from resilient_launch.examples.article import naive
from resilient_launch.examples.article.trainer import PIECES, Trainer, learning_rate, shard_of
from resilient_launch.job.mishaps import at_file_of_save

CRASHED = 137
SHARDS_BEFORE_CRASH = 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the article's small network.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds to sleep in every step")
    parser.add_argument("--directory", type=Path, default=Path("checkpoints"), help="where to save")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--attempt", type=int, default=0, help="number of this start, new for every one")
    parser.add_argument("--writer", choices=("atomic", "naive"), default="atomic")
    parser.add_argument("--crash-at", type=int, help="leave after so many steps, without a checkpoint there")
    parser.add_argument("--crash-in-save", type=int, help="leave in the save of this step, after 2 of its 4 shards")
    parser.add_argument("--discard", choices=PIECES, help="a piece of the state to forget after the restore")
    options = parser.parse_args()
    if "RLAUNCH_PAGE_DIR" in os.environ:
        train_under_rlaunch(options)
    else:
        train_alone(options)


def train_under_rlaunch(options: argparse.Namespace) -> None:
    """As any script would: restore, step, log. rlaunch says when to save and when to leave."""
    with rl.attach(arrays=True) as run:
        trainer = Trainer()
        run.restore(trainer)
        for step in run.steps(trainer, until=options.steps):
            rate = learning_rate(step)
            run.log(step, loss=trainer.train_step(), learning_rate=rate)
            time.sleep(options.step_s)
        _say(json.dumps(_summary(trainer)))


def train_alone(options: argparse.Namespace) -> None:
    """Save every so many steps, and be crashed where the options say."""
    trainer = Trainer()
    is_naive = options.writer == "naive"
    store = ArrayCheckpointer(options.directory, attempt=options.attempt, keep=3, shard_of=shard_of)
    resumed = naive.load(options.directory, trainer) if is_naive else store.restore(trainer) is not None
    if options.discard:
        trainer.forget(options.discard)
    if options.crash_in_save is not None and not is_naive:
        at_file_of_save(options.directory, options.crash_in_save, num_files=SHARDS_BEFORE_CRASH, end=_crash)
    _say(f"start step={trainer.step} resumed={resumed}")
    while trainer.step < options.steps:
        trainer.train_step()
        time.sleep(options.step_s)
        trainer.advance()
        if trainer.step == options.crash_at:
            _crash()
        if trainer.step % options.every == 0 and not is_naive:
            store.save(trainer)
        elif trainer.step % options.every == 0:
            for num_shards in naive.save(options.directory, trainer):
                if trainer.step == options.crash_in_save and num_shards == SHARDS_BEFORE_CRASH:
                    _crash()
    _say(json.dumps(_summary(trainer)))


def _summary(trainer: Trainer) -> dict[str, object]:
    return {"final_step": trainer.step, "digest": trainer.digest(), "loss": round(trainer.evaluate(), 6)}


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _crash() -> None:
    os._exit(CRASHED)


if __name__ == "__main__":
    main()
