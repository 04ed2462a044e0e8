"""``python -m resilient_launch.examples.article``: run the experiments, print what happened, exit 1 if one is wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from resilient_launch.core.errors import EXIT_FAILED, EXIT_OK
from resilient_launch.examples.article.experiments import Experiments


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description="Crash, kill, tear and damage a small training run, and compare.")
    parser.add_argument("--directory", type=Path, help="keep every checkpoint here; a temporary directory otherwise")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which processes are killed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rlaunch-article-") as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        verdicts = Experiments(directory, say=_say, seed=options.seed).run()
    for verdict in verdicts:
        _say(f"{'PASS' if verdict.is_good else 'FAIL'} {verdict.name}{''.join(f': {why}' for why in verdict.problems)}")
    return EXIT_OK if all(verdict.is_good for verdict in verdicts) else EXIT_FAILED


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
