"""One process: what a state holds, that it resumes exactly, and that each piece of it matters."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training import Training

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.dcp import StoreReader
from resilient_launch.checkpoint.digest import state_digest, state_lines
from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.checkpoint.rng import seed_all
from resilient_launch.checkpoint.train_state import TrainState

CUT, END = 7, 20
"""The cut is in the middle of an epoch of 12 batches."""


def final_digest(training: Training, directory: Path) -> str:
    training.train(END)
    report = Checkpointer(directory).save(training.state)
    return state_digest(directory / str(report.id))


def copy(source: TrainState, target: TrainState, directory: Path, **options: Any) -> None:
    """Take a state through a checkpoint."""
    Checkpointer(directory).save(source)
    assert Checkpointer(directory, attempt=1).restore(target, **options) is not None


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_resumed_training_ends_in_the_same_state(tmp_path: Path, optimizer: str) -> None:
    reference = final_digest(Training(optimizer=optimizer), tmp_path / "reference")
    first = Training(optimizer=optimizer)
    first.train(CUT)
    Checkpointer(tmp_path / "run").save(first.state)
    # The process that resumes was seeded otherwise and has even trained a little.
    second = Training(optimizer=optimizer, seed=2)
    second.train(3)
    restored = Checkpointer(tmp_path / "run", attempt=1).restore(second.state)
    assert restored is not None and (restored.step, second.state.step) == (CUT, CUT)
    assert final_digest(second, tmp_path / "final") == reference


def test_saving_disturbs_nothing(tmp_path: Path) -> None:
    """Not even before the first step, where torch's own API would take an optimizer step to have something to save."""
    for optimizer in ("adamw", "sgd"):
        reference = final_digest(Training(optimizer=optimizer), tmp_path / f"reference {optimizer}")
        training = Training(optimizer=optimizer)
        for step in (0, 1, CUT):
            training.train(step)
            Checkpointer(tmp_path / optimizer).save(training.state)
        assert final_digest(training, tmp_path / f"final {optimizer}") == reference


def test_a_state_from_before_the_first_step_resets_a_used_optimizer(tmp_path: Path) -> None:
    reference = final_digest(Training(), tmp_path / "reference")
    used = Training(seed=2)
    used.train(3)
    copy(Training().state, used.state, tmp_path / "run")
    assert not used.optimizer.state
    assert final_digest(used, tmp_path / "final") == reference


def drop_momentum(training: Training, fresh: Training) -> None:
    training.optimizer.state.clear()


def drop_position(training: Training, fresh: Training) -> None:
    training.sampler.load_state_dict(fresh.sampler.state_dict())


def drop_schedule(training: Training, fresh: Training) -> None:
    training.scheduler.load_state_dict(fresh.scheduler.state_dict())


def drop_running_statistics(training: Training, fresh: Training) -> None:
    training.model[1].load_state_dict({**fresh.model[1].state_dict(), **dict(training.model[1].named_parameters())})


def drop_python_random(training: Training, fresh: Training) -> None:
    random.seed(0)


def drop_numpy_random(training: Training, fresh: Training) -> None:
    np.random.seed(0)


def drop_torch_random(training: Training, fresh: Training) -> None:
    torch.manual_seed(0)


def drop_step(training: Training, fresh: Training) -> None:
    training.state.step = 0


DROPS = [
    drop_momentum,
    drop_position,
    drop_schedule,
    drop_running_statistics,
    drop_python_random,
    drop_numpy_random,
    drop_torch_random,
    drop_step,
]


@pytest.mark.parametrize("drop", DROPS, ids=lambda drop: drop.__name__)
def test_losing_any_one_piece_changes_the_final_state(tmp_path: Path, drop: Callable[..., None]) -> None:
    reference = final_digest(Training(), tmp_path / "reference")
    first, fresh = Training(), Training(seed=2)
    first.train(CUT)
    second = Training(seed=2)
    copy(first.state, second.state, tmp_path / "run")
    drop(second, fresh)
    assert final_digest(second, tmp_path / "final") != reference


def test_the_digest_knows_nothing_of_attempts_and_times(tmp_path: Path) -> None:
    training = Training()
    training.train(2)
    first = Checkpointer(tmp_path / "a", attempt=0, run_id="x").save(training.state, reason="steps")
    second = Checkpointer(tmp_path / "b", attempt=3, restart=1, code_version="c").save(
        training.state, metadata={"note": 1}
    )
    paths = [tmp_path / "a" / str(first.id), tmp_path / "b" / str(second.id)]
    assert state_digest(paths[0]) == state_digest(paths[1])
    kinds = {line.split(" ")[0] for line in state_lines(paths[0])}
    assert kinds == {"entry", "rank", "tensor"}
    (paths[0] / "shard-r00000.bin").write_bytes(b"")
    with pytest.raises(store.DamagedError):
        state_digest(paths[0])


def test_the_digest_needs_no_torch(tmp_path: Path) -> None:
    report = Checkpointer(tmp_path).save(Training().state)
    code = (
        "import sys, pathlib; from resilient_launch.checkpoint.digest import state_digest;"
        "print(state_digest(pathlib.Path(sys.argv[1]))); sys.exit('torch' in sys.modules)"
    )
    path = tmp_path / str(report.id)
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == state_digest(path)


class Greedy:
    """Loading it draws from every generator, as starting a data pipeline does."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        draw()


def draw() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_random_state_is_restored_after_all_that_may_draw(tmp_path: Path) -> None:
    seed_all(1)
    report = Checkpointer(tmp_path).save(TrainState(a=Greedy(), data=Greedy(), z=Greedy()))
    expected = draw()
    assert Checkpointer(tmp_path, attempt=1).restore(TrainState(a=Greedy(), data=Greedy(), z=Greedy())) is not None
    assert draw() == expected and report.id.step == 0


class Holder:
    """A stateful thing around any value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> Any:
        return self.value

    def load_state_dict(self, state: Any) -> None:
        self.value = state


DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back_bit_by_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    base = torch.arange(24).reshape(2, 3, 4).to(dtype)
    tensors = {
        "plain": base,
        "transposed": base.transpose(0, 2),
        "strided": base[:, 1:, ::2],
        "scalar": base[1, 1, 1],
        "empty": base[:0],
        "expanded": base[:1].expand(5, 3, 4),
    }
    if dtype is torch.complex64:
        tensors["conjugate"] = (base * 1j).conj()
    holder = Holder({})
    copy(TrainState(x=Holder(tensors)), TrainState(x=holder), tmp_path)
    assert holder.value.keys() == tensors.keys()
    for name, tensor in tensors.items():
        back = holder.value[name]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert back.contiguous().reshape(-1).view(torch.uint8).tolist() == (
            tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8).tolist()
        )


def test_not_a_number_keeps_its_bits(tmp_path: Path) -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800001, -1, -0x80000000], dtype=torch.int64).to(torch.int32)
    holder = Holder(None)
    copy(TrainState(x=Holder(bits.view(torch.float32))), TrainState(x=holder), tmp_path)
    assert torch.equal(holder.value.view(torch.int32), bits)


def test_moments_of_another_dtype_than_their_parameters_are_not_cast(tmp_path: Path) -> None:
    """torch's load_state_dict casts float32 moments of a bfloat16 model to bfloat16, silently."""

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer, TrainState]:
        model = torch.nn.Linear(3, 3, dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        return model, optimizer, TrainState(model=model, optimizer=optimizer)

    model, optimizer, state = build()
    moments = {name: torch.rand(parameter.shape) for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": moments[name], "exp_avg_sq": moments[name]}
    other_model, other, other_state = build()
    copy(state, other_state, tmp_path)
    for name, parameter in other_model.named_parameters():
        assert other.state[parameter]["exp_avg"].dtype == torch.float32
        assert torch.equal(other.state[parameter]["exp_avg"], moments[name])


def test_several_models_and_optimizers_frozen_tied_and_unused_parameters(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(5, 4)
            self.frozen = torch.nn.Linear(4, 4).requires_grad_(False)
            self.unused = torch.nn.Linear(4, 4)
            self.head = torch.nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.frozen(self.embed(x)))

    def build(seed: int) -> tuple[dict[str, Net], list[torch.optim.Optimizer], TrainState]:
        seed_all(seed)
        models = {"generator": Net(), "critic": Net()}
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(
                [
                    {"params": [models["generator"].embed.weight], "lr": 0.1},
                    {"params": models["generator"].unused.parameters()},
                ]
            ),
            torch.optim.SGD(models["critic"].parameters(), lr=0.1, momentum=0.9),
        ]
        schedulers = [torch.optim.lr_scheduler.MultiStepLR(each, [1, 2]) for each in optimizers]
        scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=1)
        ema = torch.optim.swa_utils.AveragedModel(models["critic"])
        state = TrainState(
            model=models, optimizer=optimizers, lr_scheduler=schedulers, scaler=scaler, ema=ema,
            noise=torch.Generator().manual_seed(seed), choice=np.random.default_rng(seed), pick=random.Random(seed),
        )  # fmt: skip
        return models, optimizers, state

    def train(models: dict[str, Net], optimizers: list[torch.optim.Optimizer]) -> None:
        for _ in range(2):
            loss = sum(model(torch.arange(5)).square().sum() for model in models.values())
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    models, optimizers, state = build(1)
    train(models, optimizers)
    others = build(2)
    copy(state, others[2], tmp_path / "first")
    assert capture_equal(state, others[2])
    train(models, optimizers)
    train(*others[:2])
    assert capture_equal(state, others[2])


def capture_equal(left: TrainState, right: TrainState) -> bool:
    one, two = left.capture(), right.capture()
    return (
        one.trees == two.trees
        and one.own == two.own
        and one.tensors.keys() == two.tensors.keys()
        and all(torch.equal(one.tensors[key], two.tensors[key]) for key in one.tensors)
    )


def test_nothing_to_restore_leaves_the_state_alone(tmp_path: Path) -> None:
    training, reference = Training(), Training()
    report = Checkpointer(tmp_path).save(training.state)
    (tmp_path / str(report.id) / "shard-r00000.bin").write_bytes(b"x")
    checkpointer = Checkpointer(tmp_path, attempt=1)
    assert checkpointer.restore(training.state) is None
    assert [verdict.standing for verdict in checkpointer.verdicts] == [store.Standing.DAMAGED]
    assert capture_equal(training.state, reference.state)


def test_torchs_own_load_reads_through_our_reader(tmp_path: Path) -> None:
    saved = torch.nn.Linear(3, 2)
    report = Checkpointer(tmp_path).save(TrainState(model=saved))
    target = {"model/weight": torch.zeros(2, 3)}
    with store.open_checkpoint(tmp_path / str(report.id)) as opened:
        reader = StoreReader(opened, Index.parse(opened.read(INDEX_NAME)))
        torch.distributed.checkpoint.load(target, storage_reader=reader, no_dist=True)
    assert torch.equal(target["model/weight"], saved.weight)


UNPICKLING_IS_FORBIDDEN = """
import sys
from pathlib import Path
import torch
from resilient_launch.checkpoint.checkpointer import Checkpointer
from training import Training

def forbid(event, arguments):
    if event.startswith("pickle."):
        raise RuntimeError(event)

first, second = Training(), Training(seed=2)
first.train(2)
sys.addaudithook(forbid)
Checkpointer(Path(sys.argv[1])).save(first.state)
assert Checkpointer(Path(sys.argv[1]), attempt=1).restore(second.state).step == 2
try:
    torch.save(torch.zeros(1), Path(sys.argv[1]) / "x")
    torch.load(Path(sys.argv[1]) / "x", weights_only=False)
except RuntimeError as error:
    print(error)
"""


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNPICKLING_IS_FORBIDDEN, str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    # The last word shows that the hook does notice an unpickling.
    assert (done.returncode, done.stdout.strip()) == (0, "pickle.find_class"), done.stderr


def test_names_are_worked_out_once_and_stay_right() -> None:
    training = Training()
    before = training.state.capture()
    training.train(2)
    first, second = training.state.capture(), training.state.capture()
    # The optimizer has its state since, and the second time nothing was asked of torch any more.
    assert before.tensors.keys() < first.tensors.keys()
    assert first.trees == second.trees
    assert list(first.tensors) == list(second.tensors)
    parameters = dict(training.model.named_parameters())
    for key, parameter in parameters.items():
        assert second.tensors[f"model/{key}"].data_ptr() == parameter.data_ptr()
        moment = training.optimizer.state[parameter]["exp_avg"]
        assert second.tensors[f"optimizer/state/{key}/exp_avg"].data_ptr() == moment.data_ptr()
    training.model.add_module("more", torch.nn.Linear(2, 2))
    assert "model/more.weight" in training.state.capture().tensors
