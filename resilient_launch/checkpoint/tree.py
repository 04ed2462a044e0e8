"""A state as JSON and tensors, and back, exactly; what can't come back as it was is refused by name.

Plain values stand for themselves; everything JSON does not know is a one-key object whose key begins with ``$``.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from resilient_launch.core.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np

_MAPPINGS: dict[type[Any], str] = {OrderedDict: "$ordered", Counter: "$counter"}
_SEQUENCES: dict[type[Any], str] = {tuple: "$tuple", torch.Size: "$size", set: "$set", frozenset: "$frozenset"}
_NUMPY_KINDS = "biufc"


def encode(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Any:
    """``value`` as JSON, its tensors put into ``tensors`` under keys that begin with ``key``.

    Raises CheckpointError naming the key of a value that could not be restored exactly.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [encode(item, join(key, index), tensors) for index, item in enumerate(value)]
    if kind is dict and all(type(name) is str and not name.startswith("$") for name in value):
        return {name: encode(item, join(key, name), tensors) for name, item in value.items()}
    if kind is dict or kind in _MAPPINGS:
        return {_MAPPINGS.get(kind, "$dict"): _encode_items(value.items(), key, tensors)}
    if kind is defaultdict:
        raise _refused(key, value, "its default can't be saved; make it a dict")
    if kind in _SEQUENCES:
        items = sorted(value, key=repr) if kind in (set, frozenset) else value
        return {_SEQUENCES[kind]: [encode(item, join(key, index), tensors) for index, item in enumerate(items)]}
    if kind is deque:
        items = [encode(item, join(key, index), tensors) for index, item in enumerate(value)]
        return {"$deque": items, "maxlen": value.maxlen}
    if kind in (bytes, bytearray):
        return {f"${kind.__name__}": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$complex": [encode(part, key, tensors) for part in (value.real, value.imag)]}
    if kind is torch.dtype:
        return {"$dtype": dtype_name(value)}
    if kind is torch.device:
        return {"$device": str(value)}
    if isinstance(value, torch.Tensor):
        return {"$tensor": _add(_checked(value, key), key, tensors)}
    if kind.__module__ == "numpy":
        return _encode_numpy(value, key, tensors)
    raise _refused(
        key, value, "only numbers, text, bytes, containers, tensors and NumPy arrays can be restored exactly"
    )


def decode(tree: Any, fetch: Callable[[str], torch.Tensor]) -> Any:
    """The value that ``encode`` saw, its tensors taken from ``fetch(key)``."""
    if isinstance(tree, list):
        return [decode(item, fetch) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if not tag.startswith("$"):
        return {name: decode(item, fetch) for name, item in tree.items()}
    body = tree[tag]
    match tag:
        case "$tensor":
            return fetch(body)
        case "$float":
            return float(body)
        case "$complex":
            return complex(*(decode(part, fetch) for part in body))
        case "$bytes":
            return base64.b64decode(body)
        case "$bytearray":
            return bytearray(base64.b64decode(body))
        case "$dtype":
            return dtype_of(body)
        case "$device":
            return torch.device(body)
        case "$deque":
            return deque([decode(item, fetch) for item in body], tree["maxlen"])
        case "$dict" | "$ordered" | "$counter":
            pairs = [(decode(name, fetch), decode(item, fetch)) for name, item in body]
            kinds: dict[str, type[Any]] = {"$dict": dict, "$ordered": OrderedDict, "$counter": Counter}
            return kinds[tag](dict(pairs))
        case "$ndarray" | "$npscalar":
            return _decode_numpy(tag, tree, fetch)
    for kind, name in _SEQUENCES.items():
        if name == tag:
            return kind([decode(item, fetch) for item in body])
    raise CheckpointError(f"checkpoint holds a value of kind {tag}", why="this version does not know it")


def join(key: str, name: Any) -> str:
    """The key of ``name`` under ``key``: parts joined by slashes, which names themselves may not contain bare."""
    return f"{key}/{str(name).replace('%', '%25').replace('/', '%2F')}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Raises CheckpointError for a name that this torch does not have."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"dtype {name!r}", why="this version of torch does not have it")
    return dtype


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """A contiguous CPU tensor's memory itself; anything else's bytes in a copy."""
    flat = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(bytearray())


def _encode_items(items: Iterable[tuple[Any, Any]], key: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    return [[encode(name, join(key, name), tensors), encode(item, join(key, name), tensors)] for name, item in items]


def _checked(tensor: torch.Tensor, key: str) -> torch.Tensor:
    if isinstance(tensor, DTensor):
        if any(placement.is_partial() for placement in tensor.placements):
            raise _refused(key, tensor, "it holds partial sums that are not reduced yet")
        return tensor.detach()
    if type(tensor) is not torch.Tensor and not isinstance(tensor, torch.nn.Parameter | torch.nn.Buffer):
        raise _refused(key, tensor, "tensor subclasses other than DTensor can't be restored exactly")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise _refused(key, tensor, "only dense tensors with data can be saved")
    return tensor.detach()


def _add(tensor: torch.Tensor, key: str, tensors: dict[str, torch.Tensor]) -> str:
    if key in tensors:
        raise CheckpointError(f"two values of the state have the key {key}", hint="rename one")
    tensors[key] = tensor
    return key


def _encode_numpy(value: Any, key: str, tensors: dict[str, torch.Tensor]) -> Any:
    import numpy as np

    if isinstance(value, np.generic) and value.dtype.kind in _NUMPY_KINDS:
        return {"$npscalar": value.tobytes().hex(), "dtype": value.dtype.str}
    if type(value) is np.ndarray and value.dtype.kind in _NUMPY_KINDS:
        raw = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else torch.empty(0)
        stored = {"$tensor": _add(raw.to(torch.uint8), key, tensors)}
        return {"$ndarray": stored, "dtype": value.dtype.str, "shape": list(value.shape)}
    raise _refused(key, value, "only NumPy numbers and arrays of numbers can be restored exactly")


def _decode_numpy(tag: str, tree: dict[str, Any], fetch: Callable[[str], torch.Tensor]) -> Any:
    import numpy as np

    dtype: np.dtype[Any] = np.dtype(str(tree["dtype"]))
    if dtype.kind not in _NUMPY_KINDS:
        raise CheckpointError(f"checkpoint holds a NumPy value of type {dtype}", why="no writer of ours makes one")
    if tag == "$npscalar":
        return np.frombuffer(bytes.fromhex(tree[tag]), dtype)[0]
    raw = fetch(tree[tag]["$tensor"]).numpy().tobytes()
    return np.frombuffer(raw, dtype).reshape(tree["shape"]).copy()


def _refused(key: str, value: Any, why: str) -> CheckpointError:
    kind = type(value)
    return CheckpointError(
        f"{key} is a {kind.__module__}.{kind.__qualname__}",
        why=why,
        hint="leave it out of the state, or give it as something that can be saved",
    )
