"""Real ranks for tests: processes with a gloo group and a store, that run functions until they are told to stop."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings
from real_ranks import Ranks

# A loaded machine must not fail a test, and several tests at once must not fight over threads.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2)
    yield ranks
    ranks.close()
