"""What a checkpoint must be to fit a state, what may differ where it is allowed, and which checkpoints stay."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training import Training

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import CheckpointError, UsageError
from resilient_launch.policy.retention import any_of, best, newest


class Holder:
    """A stateful thing around any value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, state: Any) -> None:
        self.value = state


def linear(inputs: int, outputs: int, **options: Any) -> TrainState:
    return TrainState(model=torch.nn.Linear(inputs, outputs, **options))


def test_differences_are_listed_and_nothing_is_loaded(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(linear(3, 2))
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    before = model[0].weight.clone()
    with pytest.raises(CheckpointError) as caught:
        Checkpointer(tmp_path, attempt=1).restore(TrainState(model=model, extra=Holder(1)))
    text = str(caught.value)
    for part in ("model/0.weight: not in", "model/weight: only in", "model/bias: only in", "extra: not in"):
        assert part in text
    assert torch.equal(model[0].weight, before)
    assert store.published(tmp_path)
    with pytest.raises(CheckpointError, match=r"model/weight: \[2, 3\] in the checkpoint, \[2, 4\] here"):
        Checkpointer(tmp_path, attempt=1).restore(linear(4, 2))
    with pytest.raises(CheckpointError, match=r"float32 in the checkpoint, float16 here"):
        Checkpointer(tmp_path, attempt=1).restore(linear(3, 2, dtype=torch.float16))


def test_differences_may_be_allowed_by_kind(tmp_path: Path) -> None:
    saved = torch.nn.Linear(3, 2)
    Checkpointer(tmp_path).save(TrainState(model=saved, extra=Holder(1)))
    target = torch.nn.Linear(3, 2, bias=False, dtype=torch.float16)
    state = TrainState(model=target, other=Holder(2))
    allow = ("missing", "unexpected", "dtype")
    for kind in allow:
        with pytest.raises(CheckpointError, match="does not fit"):
            Checkpointer(tmp_path, attempt=1).restore(state, allow=set(allow) - {kind})
    assert Checkpointer(tmp_path, attempt=1).restore(state, allow=allow) is not None
    assert torch.equal(target.weight, saved.weight.half())
    with pytest.raises(UsageError, match="allowance"):
        Checkpointer(tmp_path, attempt=1).restore(state, allow=("shapes",))


def test_another_shape_stays_as_it_is_here_where_allowed(tmp_path: Path) -> None:
    """A new head on a trained body: the head and its moments begin anew, all the rest goes on."""

    def build(classes: int) -> tuple[torch.nn.Sequential, torch.optim.Optimizer, TrainState]:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, classes))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        return model, optimizer, TrainState(model=model, optimizer=optimizer)

    old, old_optimizer, state = build(2)
    Checkpointer(tmp_path).save(state)
    new, optimizer, target = build(5)
    head = new[1].weight.clone()
    with pytest.raises(CheckpointError, match=r"model/1.weight: \[2, 4\] in") as caught:
        Checkpointer(tmp_path, attempt=1, allow=("dtype",)).restore(target)
    assert caught.value.hint.endswith("or --allow shape")
    assert Checkpointer(tmp_path, attempt=1, allow=("shape",)).restore(target) is not None
    assert torch.equal(new[0].weight, old[0].weight) and torch.equal(new[1].weight, head)
    moments = optimizer.state[new[0].weight]["exp_avg"]
    assert torch.equal(moments, old_optimizer.state[old[0].weight]["exp_avg"])
    new(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(new[1].weight, head)


def test_changed_parameter_groups_are_refused(tmp_path: Path) -> None:
    def state(*groups: list[str]) -> TrainState:
        model = torch.nn.Linear(3, 2)
        named = dict(model.named_parameters())
        optimizer = torch.optim.SGD([{"params": [named[name] for name in group]} for group in groups], lr=0.1)
        return TrainState(model=model, optimizer=optimizer)

    Checkpointer(tmp_path).save(state(["weight"], ["bias"]))
    with pytest.raises(CheckpointError, match="2 parameter groups in the checkpoint, 1 here"):
        Checkpointer(tmp_path, attempt=1).restore(state(["weight", "bias"]))
    with pytest.raises(CheckpointError, match="parameter group 0: bias not in the checkpoint"):
        Checkpointer(tmp_path, attempt=1).restore(state(["bias"], ["weight"]))


def test_a_state_that_cannot_be_saved_exactly_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer/words/2 is a builtins.function"):
        Checkpointer(tmp_path).save(TrainState(tokenizer=Holder({"words": [1, 2, lambda: None]})))
    assert store.published(tmp_path) == []
    for bad in ({"rng": Holder(1)}, {"rank0": Holder(1)}, {"plain": 3}):
        with pytest.raises(UsageError):
            TrainState(**bad)
    with pytest.raises(UsageError, match="no such entry"):
        TrainState(per_rank=["x"])
    with pytest.raises(UsageError, match="never per rank"):
        TrainState(model=torch.nn.Linear(1, 1), per_rank=["model"])


def test_changed_code_and_topology_are_loud(tmp_path: Path) -> None:
    Checkpointer(tmp_path, code_version="one").save(linear(3, 2))
    with pytest.raises(CheckpointError, match="saved by code one; this is two"):
        Checkpointer(tmp_path, attempt=1, code_version="two").restore(linear(3, 2))
    restored = Checkpointer(tmp_path, attempt=1, code_version="two", on_code_change="warn").restore(linear(3, 2))
    assert restored is not None and "saved by code one" in restored.warnings[0]
    assert Checkpointer(tmp_path, attempt=1).restore(linear(3, 2)) is not None


def test_lineage_parents_and_retention(tmp_path: Path) -> None:
    training = Training()
    checkpointer = Checkpointer(tmp_path, keep=1, run_id="r")
    ids = []
    for step in (1, 2, 3):
        training.train(step)
        report = checkpointer.save(training.state, reason="steps")
        ids.append(report.id)
    assert report.pruned == (ids[1],) and store.published(tmp_path) == [ids[2]]
    assert store.open_checkpoint(tmp_path / str(ids[2])).manifest.facts.parent == str(ids[1])
    resumed = Checkpointer(tmp_path, attempt=1, keep=1, run_id="r")
    restored = resumed.restore(training.state)
    assert restored is not None and resumed.resumed_from == ids[2]
    for step in (4, 5):
        training.train(step)
        ids.append(resumed.save(training.state).id)
    assert store.published(tmp_path) == [ids[4], ids[2]]
    facts = store.open_checkpoint(tmp_path / str(ids[4])).manifest.facts
    assert facts.training_s >= restored.manifest.facts.training_s > 0


def test_retention_by_what_the_training_logged(tmp_path: Path) -> None:
    training = Training()
    metrics: dict[str, float] = {}
    saver = Checkpointer(tmp_path, keep=any_of(newest(1), best("loss")), metrics=metrics)
    for step, loss in ((1, 3.0), (2, 0.5), (3, float("nan")), (4, 2.0)):
        training.train(step)
        metrics["loss"] = loss
        saver.save(training.state)
    assert [ident.step for ident in store.published(tmp_path)] == [4, 2]


def test_a_save_that_fails_removes_nothing(tmp_path: Path) -> None:
    training = Training()
    saver = Checkpointer(tmp_path, keep=1)
    saver.save(training.state)
    training.train(1)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(CheckpointError):
        saver.save(training.state, metadata={"not": object()})
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    saver.save(training.state)
    assert [ident.step for ident in store.published(tmp_path)] == [1]
