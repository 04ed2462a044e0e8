"""A checkpoint's model as one file: what others load from it is what was trained, or there is no file."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.export import Form, export
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.core.errors import UsageError


def saved(directory: Path) -> tuple[torch.nn.Module, Path]:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.BatchNorm1d(2, dtype=torch.bfloat16)})
    model["a"].register_buffer("nothing", torch.empty(0, 4))
    average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        model["a"].weight.add_(1)
    report = Checkpointer(directory, run_id="r").save(TrainState(model=model, ema=average))
    return model, directory / str(report.id)


def load(path: Path, form: Form) -> dict[str, torch.Tensor]:
    if form == "torch":
        return dict(torch.load(path, weights_only=True))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "run_id": "r", "checkpoint": "step-00000000.a0000.r0", "step": "0"}
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_what_others_load_is_what_was_saved(tmp_path: Path, form: Form) -> None:
    model, checkpoint = saved(tmp_path / "run")
    done = export(checkpoint, tmp_path / "file", form=form)
    tensors, expected = load(tmp_path / "file", form), model.state_dict()
    assert tensors.keys() == expected.keys() and done.num_tensors == len(expected) and done.skipped == ()
    for name, value in expected.items():
        assert tensors[name].dtype == value.dtype and torch.equal(tensors[name], value)
    fresh = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "b": torch.nn.BatchNorm1d(2, dtype=torch.bfloat16)})
    fresh["a"].register_buffer("nothing", torch.empty(0, 4))
    fresh.load_state_dict(tensors)
    export(checkpoint, tmp_path / "average", form=form, entry="ema")
    assert "module.a.weight" in load(tmp_path / "average", form)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path / "run")
    target = tmp_path / "out" / "file"
    target.parent.mkdir()
    target.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        export(checkpoint, target)
    with pytest.raises(UsageError, match="holds no tensors"):
        export(checkpoint, target, entry="train", is_forced=True)
    assert target.read_text() == "mine"
    export(checkpoint, target, is_forced=True)
    before = target.read_bytes()
    data = bytearray((checkpoint / "shard-r00000.bin").read_bytes())
    data[1] ^= 1
    (checkpoint / "shard-r00000.bin").write_bytes(data)
    with pytest.raises(store.DamagedError):
        export(checkpoint, target, is_forced=True)
    assert target.read_bytes() == before and [path.name for path in target.parent.iterdir()] == ["file"]
