"""Random generators as parts of a training state, each rank's its own."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

from resilient_launch.core.errors import CheckpointError


class GeneratorPart:
    """A random generator of the user's: torch.Generator, numpy.random.Generator or random.Random."""

    is_per_rank = True
    is_fixed = False

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def get(self) -> Any:
        if isinstance(self._generator, torch.Generator):
            return self._generator.get_state()
        if isinstance(self._generator, random.Random):
            return _pack_python(self._generator.getstate())
        return self._generator.bit_generator.state

    def put(self, state: Any, *, strict: bool) -> None:
        if isinstance(self._generator, torch.Generator):
            self._generator.set_state(state)
        elif isinstance(self._generator, random.Random):
            self._generator.setstate(_unpack_python(state))
        else:
            self._generator.bit_generator.state = state

    @staticmethod
    def fits(value: Any) -> bool:
        numpy = sys.modules.get("numpy")
        kinds: tuple[type[Any], ...] = (torch.Generator, random.Random)
        return isinstance(value, (*kinds, numpy.random.Generator) if numpy else kinds)


class RandomPart:
    """The process's random generators: python's, NumPy's where imported, torch's on the CPU and every CUDA device.

    CUDA's are included once CUDA is in use; asking earlier would create a context on every device.
    """

    is_per_rank = True
    is_fixed = False

    def get(self) -> dict[str, Any]:
        state: dict[str, Any] = {"python": _pack_python(random.getstate()), "torch": torch.get_rng_state()}
        if numpy := sys.modules.get("numpy"):
            state["numpy"] = numpy.random.get_state(legacy=False)
        if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            state["cuda"] = torch.cuda.get_rng_state_all()
        return state

    def put(self, state: Any, *, strict: bool) -> None:
        random.setstate(_unpack_python(state["python"]))
        if "numpy" in state:
            import numpy as np

            np.random.set_state(state["numpy"])
        if cuda := state.get("cuda"):
            if torch.cuda.device_count() != len(cuda) and strict:
                raise CheckpointError(
                    f"random state of {len(cuda)} CUDA devices",
                    why=f"this process sees {torch.cuda.device_count()}",
                    hint="start with as many devices a process, or allow a changed topology",
                )
            for device in range(min(len(cuda), torch.cuda.device_count())):
                torch.cuda.set_rng_state(cuda[device], device)
        torch.set_rng_state(state["torch"])

    def derive(self, state: Any, rank: int) -> None:
        """Seed a rank that the checkpoint does not know, from a known rank's state and its own number."""
        material = hashlib.sha256(state["torch"].numpy().tobytes() + rank.to_bytes(8, "little")).digest()
        _seed(int.from_bytes(material[:8], "little"))


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed python's, NumPy's and torch's generators, differently on each rank.

    All of them are part of a training state, so two runs can only end in equal states when all were seeded alike.
    """
    material = hashlib.sha256(f"{seed}/{rank}".encode()).digest()
    _seed(int.from_bytes(material[:8], "little"))


def _seed(seed: int) -> None:
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
    # Seeds every CUDA device as well.
    torch.manual_seed(seed >> 1)


def _pack_python(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}


def _unpack_python(state: Mapping[str, Any]) -> tuple[Any, ...]:
    return state["version"], tuple(state["words"].tolist()), state["gauss"]
