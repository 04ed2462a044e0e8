"""A submission through submitit, from the request to what the tasks print."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from slurm_bench import Bench
from waiting import wait_for

from resilient_launch.cluster.submitit_glue import SbatchRequest, script_text, submit
from resilient_launch.core.errors import RefusedError

HOSTILE = 'we ird "d\'q" $(touch pwned) #x;é&|<>*?~!`id`'
PYTHON = f"env --block-signal=USR1 {shlex.quote(sys.executable)}"


def speak(*words: object) -> None:
    """What the tasks run; importable by them, so that nothing is pickled but its name."""
    import os

    print(os.environ["SLURM_PROCID"], os.environ.get("SLURM_RESTART_COUNT"), *words, flush=True)
    if words[0] == "stay":
        import time

        time.sleep(600)


def _request(folder: Path, *words: str, **more: object) -> SbatchRequest:
    # What this module itself imports has to be found on the nodes too.
    path = shlex.quote(f"{Path(__file__).parent}:{Path(__file__).parents[1]}")
    values: dict[str, object] = {
        "job_name": "glue",
        "folder": folder,
        "function": speak,
        "args": words,
        "nodes": 2,
        "time_s": 100,
        "signal_lead_s": 30,
        "mem": "64M",
        "python": PYTHON,
        "setup": (f"export PYTHONPATH={path}",),
    }
    return SbatchRequest(**(values | more))  # type: ignore[arg-type]


def test_hostile_names_and_paths_arrive_untouched(bench: Bench) -> None:
    folder = bench.directory / HOSTILE
    text = 'it\'s $(touch pwned) `id` "q" #h; exit 1'
    request = _request(folder, "hello", HOSTILE, job_name=text, extra={"comment": text, "exclude": "n1"})
    job_id = submit(request, bench.env)
    bench.jobs.append(job_id)
    ended = bench.wait_state(job_id, "COMPLETED", "FAILED")
    assert (ended.state, ended.name, ended.comment, ended.time_limit_s) == ("COMPLETED", text, text, 120)
    assert ended.nodes == "n[2-3]"
    for rank in range(2):
        assert f"{rank} None hello {HOSTILE}" in (folder / f"{job_id}_{rank}_log.out").read_text().splitlines()
    assert (folder / f"{job_id}_submission.sh").read_text() == script_text(request)
    assert not list(bench.directory.rglob("pwned")) and not Path("pwned").exists()


def test_logs_of_every_run_are_kept_and_an_enclosing_jobs_identity_is_not(bench: Bench) -> None:
    env = {
        **bench.env,
        "SLURM_RESTART_COUNT": "7",
        "SLURM_JOB_ID": "1",
        "SBATCH_SIGNAL": "USR2@9",
        "SBATCH_TIMELIMIT": "9",
    }
    job_id = submit(_request(bench.directory / "log", "stay"), env)
    bench.jobs.append(job_id)
    logs = [bench.directory / "log" / f"{job_id}_{rank}_log.out" for rank in range(2)]

    def said(restart: object) -> bool:
        return all(log.exists() and f"{rank} {restart} stay" in log.read_text() for rank, log in enumerate(logs))

    wait_for(lambda: said(None))
    assert bench.show(job_id).time_limit_s == 120
    bench.slurm.requeue(job_id)
    bench.wait_state(job_id, "PENDING")
    bench.slurm.start_now(job_id)
    wait_for(lambda: said(1))
    assert said(None)


@pytest.mark.parametrize("more", [{"partition": "nope"}, {"extra": {"frobnicate": 1}}])
def test_a_refused_submission_leaves_nothing(bench: Bench, more: dict[str, object]) -> None:
    with pytest.raises(RefusedError) as refused:
        submit(_request(bench.directory / "new", "x", **more), bench.env)
    assert "artition" in str(refused.value) or "frobnicate" in str(refused.value)
    assert not (bench.directory / "new").exists()
    (bench.directory / "old").mkdir()
    with pytest.raises(RefusedError):
        submit(_request(bench.directory / "old", "x", **more), bench.env)
    assert list((bench.directory / "old").iterdir()) == []
