"""A run with a range of nodes: without one that is not fit, then without one that is slow, then with fewer ranks."""

from __future__ import annotations

import pytest
from integration_bench import RunBench

from resilient_launch.job.attempt import read_ends


@pytest.mark.slow
def test_nodes_that_are_not_fit_or_slow_are_left_and_the_global_batch_is_kept(bench: RunBench) -> None:
    script = bench.workdir / "train.py"
    text = script.read_text()
    for old, new in (
        ("batch_size=4", "batch_size=run.batch_size"),
        # Three ranks train until they are told to leave, two come to an end.
        ("until=options.steps", "until=10**6 if run.world_size == 3 else state.step + 20"),
        (
            "            loss = (model(next(batches)) ** 2).mean()\n",
            "            with run.local_work():\n"
            # The others' share is too short to be disturbed by whatever else this machine does.
            "                run.rank == 2 and time.sleep(0.02)\n"
            "            batch = next(batches)\n"
            "            loss = (model(batch) ** 2).mean()\n",
        ),
        ('print(f"step {step}"', 'print(f"step {step}", len(batch)'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script.write_text(text)
    config = bench.config(
        "run",
        nodes="2-3",
        global_batch=12,
        fake={"nodes": 4},
        sbatch={"hold": True},
        restart={"backoff": "0s", "requeue_stragglers": True},
    )
    job_id = bench.submit(config)
    paths = bench.paths("run")
    # What the second node's check wants to write is in its way, in the first attempt alone.
    (paths.directory / f".health-{job_id}-0-1.tmp").mkdir()
    bench.slurm.release(job_id)
    bench.wait("run")
    rows = bench.status("run")["attempts"]
    assert [row["cause"] for row in rows] == ["node_failure", "yielded", "finished"]
    assert [row["nodes"] for row in rows] == [["n1", "n2", "n3"], ["n1", "n3", "n4"], ["n1", "n3"]]
    ends = read_ends(paths)
    assert (ends[0].suspects, ends[1].suspects) == (("n2",), ("n4",))
    assert "node n2 is not fit: run directory" in ends[0].error and not bench.logs("run", 0)
    (notice,) = bench.events("run", "notice")
    assert notice["source"] == "slower than all others: n4"
    assert rows[2]["resume_step"] == rows[1]["end_step"] >= 150 and rows[2]["rework_steps"] == 0
    sizes = [
        {line.split()[2] for line in bench.logs("run", number).splitlines() if line.startswith("step ")}
        for number in (1, 2)
    ]
    assert sizes == [{"4"}, {"6"}]
