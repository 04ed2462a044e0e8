"""``python -m nursery_child SCRIPT MODULE ENV...``: a nursery for SCRIPT that has imported MODULE, and one worker for
each ENV, a JSON object; the first line on stdin lets it wait for them. Says what became of each, one JSON a line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from resilient_launch.job.nursery import open_nursery
from resilient_launch.job.program import Program, own_search_path, run_as_main


def agent() -> Program | None:
    """What an agent does with its nursery; in a worker, its program."""
    script, module, *envs = sys.argv[1:]
    program = Program(python=sys.executable, script=script, args=("--one", "two words"))
    opened = open_nursery(program, own_search_path(), modules=[module])
    if opened.program is not None:
        return opened.program
    assert opened.nursery is not None
    workers = [opened.nursery.start({**os.environ, **json.loads(env)}, Path(f"log.{n}")) for n, env in enumerate(envs)]
    print(json.dumps([worker and worker.pid for worker in workers]), flush=True)
    sys.stdin.readline()
    print(json.dumps([worker and worker.wait(60) for worker in workers]), flush=True)
    return None


if __name__ == "__main__":
    forked = agent()
    if forked is not None:
        run_as_main(forked)
