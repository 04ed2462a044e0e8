"""How a user's configuration is changed for a rehearsal, and how checkpoints are damaged in one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from resilient_launch.checkpoint.store import DamagedError, choose, open_checkpoint, published, write_buffers
from resilient_launch.cli.main import app
from resilient_launch.cluster.fake.spec import PartitionSpec
from resilient_launch.config import loads
from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core.errors import UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.job import code
from resilient_launch.lab.rehearse.performance import damage, leave_out, rehearsal_config
from resilient_launch.lab.rehearse.scenarios import Moments

TEXT = """
name: big
script: train.py
nodes: 2-4
workers_per_node: 3
cpus_per_worker: 5
partition: gpu
account: someone
qos: high
sbatch: {constraint: a100}
time: 24h
checkpoint: {every: 15m, keep: 2}
stagger: {group: /shared/turns}
restart: {max_crashes: 9}
"""


@pytest.fixture
def config(tmp_path: Path) -> LaunchConfig:
    (tmp_path / "train.py").write_text("pass\n")
    return loads(TEXT, base=tmp_path)


def test_a_job_for_a_real_cluster_fits_the_fake_one_and_saves_often(config: LaunchConfig) -> None:
    found = rehearsal_config(config, Moments.of(40))
    assert found.cluster == "fake" and (found.nodes.min, found.nodes.max) == (2, 2)
    assert (found.account, found.qos, found.sbatch, found.stagger.group) == (None, None, (), None)
    # A spare node for the one that fails, room on each for another job, and a partition that may be preempted.
    assert found.fake.num_nodes == 3 and found.fake.cpus == 30
    partition = found.fake.partition(found.partition or "")
    assert isinstance(partition, PartitionSpec) and partition.preempt_mode == "requeue"
    assert (found.checkpoint.every.steps, found.checkpoint.keep) == (5, 40)
    # What is rehearsed is the user's own program.
    assert (found.script, found.workers_per_node, found.workdir) == ("train.py", 3, config.workdir)


def test_older_runs_are_no_part_of_the_code(config: LaunchConfig) -> None:
    for name in ("runs[1]/old/big.bin", "runs2/kept.py"):
        (config.workdir / name).parent.mkdir(parents=True)
        (config.workdir / name).write_text("x")
    changed = leave_out(config, config.workdir / "runs[1]")
    files = code.list_files(config.workdir, changed.code.exclude, outside=Path("/nowhere"))
    assert [str(path) for path in files] == ["runs2/kept.py", "train.py"]
    assert leave_out(config, Path("/elsewhere")) == config


def test_each_kind_of_damage_is_seen(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        buffers = {"a.bin": b"a" * 100, "b.bin": b"b" * 200}
        write_buffers(tmp_path, CheckpointId(attempt=0, restart=0, step=step), buffers)
    damage(tmp_path, [4, 3, 2])
    for ident in published(tmp_path)[:3]:
        with pytest.raises(DamagedError), open_checkpoint(tmp_path / str(ident)) as opened:
            opened.verify_share()
    choice = choose(tmp_path)
    assert choice.manifest is not None and choice.manifest.id.step == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--steps", "5"], "16 to 60"),
        (["--scenario", "storm"], "is not one"),
        (["--all", "--scenario", "crash"], "different things"),
    ],
)
def test_what_can_not_be_rehearsed_is_refused_before_anything_runs(
    tmp_path: Path, options: list[str], word: str
) -> None:
    (tmp_path / "job.yaml").write_text("name: job\ncommand: ['true']\n")
    found = CliRunner().invoke(
        app, ["rehearse", str(tmp_path / "job.yaml"), "--root", str(tmp_path / "runs"), *options]
    )
    assert isinstance(found.exception, UsageError) and word in str(found.exception)
    assert not (tmp_path / "runs").exists()
