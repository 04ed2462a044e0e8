"""torchdata's StatefulDataLoader as the data of a state: it goes on after what was consumed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.train_state import TrainState

# It warns of torch's own call that it makes on import.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def build(seed: int, num_workers: int) -> tuple[Any, TrainState]:
    from torchdata.stateful_dataloader import StatefulDataLoader

    torch.manual_seed(seed)
    loader = StatefulDataLoader(
        Numbers(), batch_size=4, shuffle=True, num_workers=num_workers, generator=torch.Generator().manual_seed(seed)
    )
    return loader, TrainState(model=torch.nn.Linear(1, 1), data=loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_goes_on_in_mid_epoch(tmp_path: Path, num_workers: int) -> None:
    whole = [batch.tolist() for batch in build(1, num_workers)[0]]
    assert len(whole) == 10
    loader, state = build(1, num_workers)
    batches = iter(loader)
    seen = [next(batches).tolist() for _ in range(3)]
    Checkpointer(tmp_path).save(state)
    other, resumed = build(2, num_workers)
    assert Checkpointer(tmp_path, attempt=1).restore(resumed) is not None
    assert seen + [batch.tolist() for batch in other] == whole
