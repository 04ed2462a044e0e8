"""DDP on one real gloo process group; the world size is what the caller says it is."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resilient_launch.checkpoint.train_state import TrainState


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "world_size", "warns"),
    [
        ({}, 4, True),
        ({}, 2, False),
        ({"find_unused_parameters": True}, 4, False),
        ({"static_graph": True}, 4, True),
    ],
)
def test_a_bucket_order_that_changes_is_named(
    group: None, options: dict[str, bool], world_size: int, warns: bool
) -> None:
    state = TrainState(model=DistributedDataParallel(nn.Linear(2, 2), **options))
    assert bool(state.inexactness(world_size)) is warns


def test_without_ddp_there_is_nothing_to_say() -> None:
    assert TrainState(model=nn.Linear(2, 2)).inexactness(8) == ()
    assert TrainState(data=None).inexactness(8) == ()
