"""A checkpoint that does not fit is refused, and says in what; so is a state that could not be saved exactly."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training import Holder

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import CheckpointError, UsageError


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
