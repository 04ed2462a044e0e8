"""Everything that the next training step depends on, collected on save and put back in the right order on restore."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from resilient_launch.checkpoint.index import Index, tensor_keys
from resilient_launch.checkpoint.parts import (
    BuffersPart,
    ModelPart,
    OptimizerPart,
    Part,
    Stateful,
    StatefulPart,
)
from resilient_launch.checkpoint.rng import GeneratorPart, RandomPart
from resilient_launch.checkpoint.tree import decode, dtype_name, dtype_of, encode, tensor_bytes
from resilient_launch.core.errors import CheckpointError, UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RESERVED = re.compile(r"rng|train|model_buffers|rank\d+")
_COMPARED_BYTES = 4096
_COMPARED_OPTIMIZER_BYTES = 16
"""Step counters and learning rates, but no moments: replicas that drift apart by a bit must not stop all saving."""
ALLOWANCES = frozenset({"missing", "unexpected", "shape", "dtype"})


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A state at one step, still in the training's own memory: the trees, and every tensor by key.

    ``pinned`` are keys that rank 0 must write; ``agreement`` is, per replicated entry, what all ranks must have alike.
    """

    trees: Mapping[str, Any]
    own: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    pinned: frozenset[str]
    agreement: Mapping[str, str]
    layout: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What was read for one rank and not yet applied."""

    index: Index
    tensors: Mapping[str, torch.Tensor]
    allow: Collection[str] = field(default_factory=frozenset)


class TrainState:
    """The state of a training: model, optimizer, LR scheduler, data position, and anything else with a state_dict.

    ``optimizer`` is one, or a list or mapping of several; ``model`` is one module or a mapping of several. ``data`` is
    a sampler or loader; keyword arguments beyond these are further entries (``scaler=``, ``ema=``, a random generator).
    Entries are taken to be the same on every rank, which is checked at each save, unless ``per_rank`` names them;
    ``data`` is per rank unless it says ``is_replicated`` itself. The random state of python, NumPy, torch and CUDA
    belongs to every state.

    ``step`` is the number of completed steps.
    """

    def __init__(
        self,
        *,
        model: torch.nn.Module | Mapping[str, torch.nn.Module] | None = None,
        optimizer: torch.optim.Optimizer
        | Collection[torch.optim.Optimizer]
        | Mapping[str, torch.optim.Optimizer]
        | None = None,
        lr_scheduler: Stateful | Collection[Stateful] | Mapping[str, Stateful] | None = None,
        data: Stateful | None = None,
        per_rank: Collection[str] = (),
        **more: Any,
    ) -> None:
        self.step = 0
        self._data = data
        self._parts: dict[str, Part] = {}
        if isinstance(model, Mapping):
            model = torch.nn.ModuleDict(dict(model))
        self._model = model
        if model is not None:
            self._parts["model"] = ModelPart(model)
        for name, each in _named("optimizer", optimizer):
            if model is None:
                raise UsageError("an optimizer without its model", why="its state is keyed by parameter names")
            self._parts[name] = OptimizerPart(model, each)
        for name, scheduler in _named("lr_scheduler", lr_scheduler):
            self._parts[name] = _part(name, scheduler, name in per_rank)
        for name, value in more.items():
            if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
                raise UsageError(f"state entry {name!r}", why="the name is reserved", hint="choose another name")
            self._parts[name] = _part(name, value, name in per_rank)
        if data is not None:
            replicated = bool(getattr(data, "is_replicated", False))
            self._parts["data"] = _part("data", data, "data" in per_rank or not replicated)
        possible = {name for name, part in self._parts.items() if not isinstance(part, ModelPart | OptimizerPart)}
        if unknown := set(per_rank) - possible:
            raise UsageError(
                f"per_rank names {', '.join(sorted(unknown))}",
                why="the state has no such entry, or it is never per rank",
            )

    def advance(self) -> int:
        """Count one completed step, here and in ``data`` where that counts batches; returns the new count."""
        self.step += 1
        advance = getattr(self._data, "advance", None)
        if callable(advance):
            advance()
        return self.step

    def parts(self, world_size: int = 1) -> Mapping[str, Part]:
        """What is saved, by entry, the random state and ranks' own buffers included."""
        return self._all_parts(world_size)

    @property
    def data(self) -> Stateful | None:
        """The sampler or loader that the state was made with."""
        return self._data

    def inexactness(self, world_size: int) -> tuple[str, ...]:
        """What will keep a resumed run from being bit-identical although its whole state is restored.

        DDP orders its gradient buckets anew once, in the second step that a process makes, so the first step after a
        resume sums in another order than the uninterrupted run; sums of two numbers alone don't depend on the order.
        """
        if self._model is None or world_size <= 2:
            return ()
        wrapped = [each for each in self._model.modules() if isinstance(each, DistributedDataParallel)]
        if all(each.find_unused_parameters and not each.static_graph for each in wrapped):
            return ()
        return (
            "DistributedDataParallel changes its bucket order after the first step, so this run's results depend on "
            "where it was interrupted; find_unused_parameters=True (and no static_graph) keeps one order",
        )

    def capture(self, rank: int = 0, world_size: int = 1) -> Capture:
        """Collect the state. Nothing is copied, changed or drawn. Raises CheckpointError naming what can't be saved."""
        tensors: dict[str, torch.Tensor] = {}
        trees: dict[str, Any] = {"train": {"step": self.step}}
        own: dict[str, Any] = {}
        pinned: set[str] = set()
        agreement: dict[str, str] = {}
        for name, part in self._all_parts(world_size).items():
            if part.is_per_rank:
                own[name] = encode(part.get(), f"rank{rank}/{name}", tensors)
                continue
            state = part.get()
            trees[name] = encode(state, name, tensors)
            if isinstance(part, ModelPart):
                # Under DDP only rank 0's buffers reach the next forward pass.
                pinned.update(f"model/{buffer}" for buffer in part.buffer_names(state))
            else:
                limit = _COMPARED_OPTIMIZER_BYTES if isinstance(part, OptimizerPart) else _COMPARED_BYTES
                agreement[name] = _fingerprint(trees[name], tensors, limit)
        agreement["tensor names, dtypes or shapes"] = _shapes(tensors, f"rank{rank}/")
        return Capture(
            trees=trees,
            own=own,
            tensors=tensors,
            pinned=frozenset(pinned),
            agreement=agreement,
            layout=_layout(tensors),
        )

    def destinations(
        self, index: Index, current: Capture, *, rank: int = 0, world_size: int = 1, allow: Collection[str] = ()
    ) -> dict[str, torch.Tensor]:
        """Empty tensors, laid out as the ``current`` ones are, for all that ``load`` will want of a checkpoint.

        Raises CheckpointError listing what differs in entries, keys, shapes or dtypes, unless ``allow`` names the kind
        (missing and shape: stays as it is here, without optimizer state; unexpected: is left out; dtype: is cast).
        """
        parts = self._all_parts(world_size)
        problems = _Problems(allow)
        wanted: dict[str, str] = {}
        for name, part in parts.items():
            trees = index.ranks.get(rank, {}) if part.is_per_rank else index.trees
            if name not in trees:
                if isinstance(part, BuffersPart):
                    continue
                if isinstance(part, RandomPart) and index.ranks:
                    trees = index.ranks[min(index.ranks)]
                else:
                    problems.add("missing", f"{name}: not in the checkpoint" + (f" for rank {rank}" * part.is_per_rank))
                    continue
            keys = set(tensor_keys(trees[name]))
            if part.is_fixed:
                keys = problems.compare(
                    keys, set(tensor_keys((current.own if part.is_per_rank else current.trees)[name])), index, current
                )
            if isinstance(part, OptimizerPart):
                for kind, text in part.problems(decode(trees[name], lambda key: torch.empty(0))):
                    problems.add(kind, f"{name}: {text}")
            wanted.update(dict.fromkeys(keys, name))
        for key, name in list(wanted.items()):
            if isinstance(parts[name], OptimizerPart) and f"model/{_parameter_of(key, name)}" in problems.reshaped:
                del wanted[key]
        for name in sorted(index.trees.keys() - parts.keys() - {"train"}):
            problems.add("unexpected", f"{name}: only in the checkpoint")
        problems.raise_if_any()
        return {key: self._destination(key, name, index, current) for key, name in wanted.items()}

    def load(self, loaded: Loaded, *, rank: int = 0, world_size: int = 1) -> list[str]:
        """Put a checkpoint's state into place, random generators last. Returns what had to be made up for."""
        warnings: list[str] = []
        strict = not set(loaded.allow)
        parts = self._all_parts(world_size)
        # Whatever else is restored may draw from the generators, so they come last.
        for name in sorted(parts, key=lambda name: isinstance(parts[name], GeneratorPart | RandomPart)):
            part = parts[name]
            trees = loaded.index.ranks.get(rank, {}) if part.is_per_rank else loaded.index.trees
            if name in trees:
                tree = trees[name]
                if isinstance(part, OptimizerPart):
                    tree = _with_whole_states(tree, loaded.tensors)
                part.put(_only_present(tree, loaded.tensors), strict=strict)
            elif isinstance(part, RandomPart) and loaded.index.ranks:
                known = min(loaded.index.ranks)
                part.derive(decode(loaded.index.ranks[known][name], loaded.tensors.__getitem__), rank)
                warnings.append(
                    f"rank {rank} is not in the checkpoint: its random state is derived from rank {known}'s"
                )
        self.step = int(loaded.index.trees["train"]["step"])
        return warnings

    def _all_parts(self, world_size: int) -> dict[str, Part]:
        parts = dict(self._parts)
        model = parts.get("model")
        if isinstance(model, ModelPart) and world_size > 1 and not model.shares_buffers() and model.buffer_names():
            parts["model_buffers"] = BuffersPart(model)
        parts["rng"] = RandomPart()
        return parts

    def _destination(self, key: str, name: str, index: Index, current: Capture) -> torch.Tensor:
        stored = index.tensors[key]
        dtype = dtype_of(stored.dtype)
        template = current.tensors.get(key)
        part = self._parts.get(name)
        if template is None and isinstance(part, OptimizerPart):
            # A parameter's optimizer state is sharded as the parameter is.
            template = current.tensors.get(f"model/{_parameter_of(key, name)}")
        if isinstance(template, DTensor) and tuple(template.shape) == stored.shape:
            local = torch.empty_like(template.to_local(), dtype=dtype)
            return DTensor.from_local(
                local,
                template.device_mesh,
                template.placements,
                run_check=False,
                shape=template.shape,
                stride=template.stride(),
            )
        return torch.empty(stored.shape, dtype=dtype)


class _Problems:
    """Differences between a state and a checkpoint, each of a kind that may be allowed."""

    def __init__(self, allow: Collection[str]) -> None:
        if unknown := set(allow) - ALLOWANCES:
            raise UsageError(f"allowance {sorted(unknown)}", hint=f"one of {', '.join(sorted(ALLOWANCES))}")
        self._allow = set(allow)
        self._found: list[str] = []
        self._kinds: set[str] = set()
        self.reshaped: set[str] = set()
        """Keys that have another shape here, which is allowed."""

    def add(self, kind: str, text: str) -> None:
        if kind not in self._allow:
            self._found.append(text)
            self._kinds.add(kind)

    def compare(self, saved: set[str], own: set[str], index: Index, current: Capture) -> set[str]:
        """Note what differs; returns the keys that both have."""
        for key in sorted(own - saved):
            self.add("missing", f"{key}: not in the checkpoint")
        for key in sorted(saved - own):
            self.add("unexpected", f"{key}: only in the checkpoint")
        for key in sorted(saved & own):
            stored, mine = index.tensors[key], current.tensors[key]
            if stored.shape != tuple(mine.shape):
                self.add("shape", f"{key}: {list(stored.shape)} in the checkpoint, {list(mine.shape)} here")
                self.reshaped.add(key)
            if stored.dtype != dtype_name(mine.dtype):
                self.add("dtype", f"{key}: {stored.dtype} in the checkpoint, {dtype_name(mine.dtype)} here")
        return (saved & own) - self.reshaped

    def raise_if_any(self) -> None:
        if self._found:
            shown = "; ".join(self._found[:20]) + (
                f"; and {len(self._found) - 20} more" if len(self._found) > 20 else ""
            )
            kinds = " --allow ".join(sorted(self._kinds & ALLOWANCES))
            raise CheckpointError(
                "the checkpoint does not fit this training state",
                why=shown,
                hint="restore with the code and configuration that saved it"
                + (f", or --allow {kinds}" if self._kinds <= ALLOWANCES else ""),
            )


def _named(entry: str, value: Any) -> list[tuple[str, Any]]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [(f"{entry}.{name}", each) for name, each in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{entry}.{number}", each) for number, each in enumerate(value)]
    return [(entry, value)]


def _part(name: str, value: Any, is_per_rank: bool) -> Part:
    if GeneratorPart.fits(value):
        return GeneratorPart(value)
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return StatefulPart(value, is_per_rank=is_per_rank)
    raise UsageError(
        f"state entry {name!r} is a {type(value).__qualname__}",
        why="it has no state_dict and load_state_dict",
        hint="give it both methods, or leave it out",
    )


def _parameter_of(key: str, optimizer: str) -> str:
    """The parameter that a tensor of an optimizer's state belongs to, as keys write it."""
    return key.removeprefix(f"{optimizer}/state/").rsplit("/", 1)[0]


def _with_whole_states(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """An optimizer's tree without the parameters whose tensors were allowed to be left out."""
    states = tree["state"]
    whole = {name: each for name, each in states.items() if all(key in tensors for key in tensor_keys(each))}
    return {**tree, "state": whole}


def _only_present(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The decoded tree without the top-level tensors that were allowed to be left out."""
    if isinstance(tree, dict) and "$tensor" not in tree:
        tree = {
            name: value
            for name, value in tree.items()
            if not (isinstance(value, dict) and "$tensor" in value and value["$tensor"] not in tensors)
        }
    return decode(tree, tensors.__getitem__)


def _fingerprint(tree: Any, tensors: Mapping[str, torch.Tensor], limit_bytes: int) -> str:
    """A digest of an entry's values and small tensors: cheap, and enough to see that ranks have drifted apart."""
    value = hashlib.blake2b(json.dumps(tree, sort_keys=True).encode(), digest_size=16)
    for key in sorted(tensor_keys(tree)):
        tensor = tensors[key]
        if not isinstance(tensor, DTensor) and tensor.numel() * tensor.element_size() <= limit_bytes:
            value.update(tensor_bytes(tensor))
    return value.hexdigest()


def _shapes(tensors: Mapping[str, torch.Tensor], own_prefix: str) -> str:
    lines = sorted(
        f"{key} {tensor.dtype} {tuple(tensor.shape)}"
        for key, tensor in tensors.items()
        if not key.startswith(own_prefix)
    )
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _layout(tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    meshes = {
        (tuple(tensor.device_mesh.shape), tuple(tensor.device_mesh.mesh_dim_names or ()))
        for tensor in tensors.values()
        if isinstance(tensor, DTensor)
    }
    if not meshes:
        return {"kind": "replicated"}
    return {"kind": "sharded", "meshes": [{"shape": list(shape), "axes": list(axes)} for shape, axes in sorted(meshes)]}
