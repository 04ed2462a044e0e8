"""Real ranks for tests: processes with a gloo group and a store, that run functions until they are told to stop."""

from collections.abc import Iterator

import pytest
import torch
from real_ranks import Ranks

# Several tests at once must not fight over threads.
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()
