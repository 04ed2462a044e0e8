"""Copying a captured state into the arena: laid out as the shard file will be, so that the writer only has to write."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.layout import Layout, Place, lay_out, local
from resilient_launch.checkpoint.train_state import Capture

_BLOCK_BYTES = 4 << 20
_FIRST_BYTES, _STRETCH_BYTES = 8 << 20, 32 << 20
"""What is copied before the writer hears of it: at first so little that the disk begins soon, then worth a word."""
_MOST_THREADS = 4


@dataclass(kw_only=True)
class _Stretch:
    """What is copied together, up to ``end`` of the image: blocks (to, from, bytes) of memory, and from devices."""

    end: int = 0
    blocks: deque[tuple[int, int, int]] = field(default_factory=deque)
    on_devices: list[tuple[Place, torch.Tensor]] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)


class Stager:
    """Lays out and copies one rank's part of a state. Remembers the layout, which stays the same from save to save."""

    def __init__(self, rank: int, world_size: int, num_sharing: int = 1) -> None:
        self._rank, self._world_size = rank, world_size
        # One core does not use up the memory's speed; the cores of other ranks are theirs.
        num_cores = len(os.sched_getaffinity(0)) // num_sharing
        self._num_helpers = max(min(num_cores, _MOST_THREADS) - 1, 0)
        self._pool = ThreadPoolExecutor(max(self._num_helpers, 1), thread_name_prefix="rlaunch-copy")
        self._signature: object = None
        self._layout: Layout | None = None
        self._laid_out_in: Arena | None = None
        self._pinned: torch.Tensor | None = None

    def layout(self, capture: Capture) -> Layout:
        """Where everything that this rank writes will lie."""
        signature = (capture.pinned, [_signature(key, tensor) for key, tensor in capture.tensors.items()])
        if self._layout is None or signature != self._signature:
            self._layout = lay_out(capture, rank=self._rank, world_size=self._world_size)
            self._signature = signature
            self._laid_out_in = None
        return self._layout

    def copy(
        self, capture: Capture, arena: Arena, progress: Callable[[int], object] = lambda num_bytes: None
    ) -> Layout:
        """Copy what this rank writes into ``arena``; the training may change its tensors as soon as this returns.

        ``progress`` hears now and then how many bytes of the image are in place, at last all of them.
        """
        layout = self.layout(capture)
        if self._laid_out_in is not arena:
            self._clear_gaps(layout, arena)
            self._laid_out_in = arena
        for stretch in _stretches(layout, capture, arena):
            blocks = stretch.blocks
            helpers = [self._pool.submit(_move, blocks) for _ in range(min(self._num_helpers, len(blocks) - 1))]
            _move(blocks)
            for helper in helpers:
                helper.result()
            if stretch.on_devices:
                self._copy_from_devices(stretch.on_devices, arena)
            progress(stretch.end)
        return layout

    def close(self) -> None:
        """Let go of the arena; before the arena itself goes."""
        if self._pinned is not None and self._pinned.is_pinned():
            _cuda_runtime().cudaHostUnregister(self._pinned.data_ptr())
        self._pinned = None
        self._laid_out_in = None

    def _copy_from_devices(self, tensors: list[tuple[Place, torch.Tensor]], arena: Arena) -> None:
        """Copies in flight together on each device's current stream, after the work that is already there."""
        if self._pinned is None or self._pinned.data_ptr() != arena.address:
            self.close()
            self._laid_out_in = arena
            self._pinned = torch.frombuffer(arena.mapped, dtype=torch.uint8)
            # Pageable memory would do too, at a part of the speed and one copy after the other.
            _cuda_runtime().cudaHostRegister(arena.address, arena.num_bytes, 0)
        for place, tensor in tensors:
            source = tensor.detach().resolve_conj().resolve_neg().contiguous()
            target = self._pinned[place.offset : place.offset + place.num_bytes]
            target.view(source.dtype).view(source.shape).copy_(source, non_blocking=True)
        for device in {tensor.device for _, tensor in tensors}:
            torch.cuda.current_stream(device).synchronize()

    def _clear_gaps(self, layout: Layout, arena: Arena) -> None:
        """What an earlier layout left between the tensors would otherwise end up in the file."""
        position = 0
        for place in layout.places:
            arena.view[position : place.offset] = bytes(place.offset - position)
            position = place.offset + place.num_bytes


def _stretches(layout: Layout, capture: Capture, arena: Arena) -> Iterator[_Stretch]:
    """The whole image in order."""
    stretch, begun, length = _Stretch(), 0, _FIRST_BYTES
    for place in layout.places:
        tensor = local(capture.tensors[place.key])
        is_here = tensor.device.type == "cpu"
        if is_here:
            # Itself, unless it lies in memory in another way than in the file.
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
            stretch.held.append(tensor)
        else:
            stretch.on_devices.append((place, tensor))
        step = _BLOCK_BYTES if is_here else max(place.num_bytes, 1)
        for start in range(0, place.num_bytes, step):
            count = min(step, place.num_bytes - start)
            if is_here:
                stretch.blocks.append((arena.address + place.offset + start, tensor.data_ptr() + start, count))
            stretch.end = place.offset + start + count
            if stretch.end - begun >= length:
                yield stretch
                stretch, begun, length = _Stretch(held=stretch.held[-1:]), stretch.end, min(2 * length, _STRETCH_BYTES)
    stretch.end = layout.num_bytes
    yield stretch


def _move(blocks: deque[tuple[int, int, int]]) -> None:
    """Copy blocks (to, from, bytes) until none is left; in several threads at once, as none holds Python's lock."""
    with contextlib.suppress(IndexError):
        while True:
            ctypes.memmove(*blocks.popleft())


def _cuda_runtime() -> Any:
    runtime: Any = torch.cuda
    return runtime.cudart()


def _signature(key: str, tensor: torch.Tensor) -> tuple[object, ...]:
    if isinstance(tensor, DTensor):
        return key, tensor.dtype, tensor.shape, tensor.device_mesh, tensor.placements, tensor.to_local().shape
    return key, tensor.dtype, tensor.shape
