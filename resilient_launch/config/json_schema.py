"""The configuration's vocabulary as a JSON Schema, for editors: keys, kinds of values, defaults, what each is for."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from resilient_launch.cluster.fake.spec import PartitionSpec
from resilient_launch.config import sections
from resilient_launch.config.cursor import Fields
from resilient_launch.config.faults import FAULTS
from resilient_launch.config.schema import LaunchConfig

_DURATION = {"type": ["string", "integer"], "examples": ["90s", "10m", "2h30m", "12:30:00"]}
_SIZE = {"type": "string", "examples": ["4G", "512M"]}
_TEXTS = {"type": "array", "items": {"type": ["string", "number", "boolean"]}}
_SCALAR = {"type": ["string", "number", "boolean"]}
_SPECIAL: dict[str, dict[str, Any]] = {
    # Keys whose form in the file is not that of the attribute they fill.
    "nodes": {"type": ["integer", "string"], "examples": [8, "4-8"]},
    "every": {"type": ["string", "object"], "examples": ["100 steps", "10m"]},
    "keep_best": {"type": "string", "examples": ["lowest loss", "3 highest accuracy"]},
    "command": {"anyOf": [_TEXTS, {"type": "string"}]},
    "setup": {"anyOf": [_TEXTS, {"type": "string"}]},
    "env": {"type": "object", "additionalProperties": _SCALAR},
    "sbatch": {"type": "object", "additionalProperties": _SCALAR},
    "args": _TEXTS,
}


def json_schema() -> dict[str, Any]:
    """The schema of a configuration file. It says less than ``rlaunch check``, which knows values that contradict."""
    schema = _section(sections.TOP, LaunchConfig)
    parts = schema["properties"]
    parts["fake"]["properties"]["nodes"] = {"type": "integer"}
    partition = {**_section(sections.PARTITION, PartitionSpec), "required": ["name"]}
    parts["fake"]["properties"]["partitions"] = {"type": "array", "items": partition}
    parts["faults"] = {"type": "array", "items": _fault(), "description": parts["faults"]["description"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rlaunch configuration",
        **schema,
        "required": ["name"],
    }


def _section(keys: Fields, cls: type) -> dict[str, Any]:
    texts = _descriptions(cls)
    hints = get_type_hints(cls)
    defaults = {field.name: field.default for field in fields(cls)}
    found: dict[str, Any] = {}
    for key, spec in keys.items():
        hint = hints.get(spec.attr, str)
        if spec.section is not None:
            kind = _section(spec.section, hint)
        else:
            kind = dict(_SPECIAL[key]) if key in _SPECIAL else _kind(spec.attr, hint)
        if text := texts.get(spec.attr):
            kind["description"] = text
        default = defaults.get(spec.attr, MISSING)
        if isinstance(default, bool | int | float | str) and default == default:
            kind["default"] = spec.encode(default)
        found[key] = kind
    return {"type": "object", "additionalProperties": False, "properties": found}


def _kind(attr: str, hint: Any) -> dict[str, Any]:
    if attr.endswith("_s"):
        return dict(_DURATION)
    if attr.endswith("_mb"):
        return dict(_SIZE)
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    choices = [each for each in get_args(hint) if each is not NoneType] if get_origin(hint) is not tuple else []
    if choices:
        return _kind(attr, choices[0])
    names = {bool: "boolean", int: "integer", float: "number"}
    if get_origin(hint) is tuple:
        return dict(_TEXTS)
    return {"type": names.get(hint, "string")}


def _fault() -> dict[str, Any]:
    keys = sorted({key for spec in FAULTS.values() for key in spec})
    at = {
        "type": "object",
        "properties": {"step": {"type": "integer"}, "after": dict(_DURATION)},
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "at": at,
            "do": {"enum": [cls.verb for cls in FAULTS]},
            **{key: {"type": ["string", "integer"]} for key in keys},
        },
        "required": ["at", "do"],
    }


def _descriptions(cls: type) -> dict[str, str]:
    """The sentence under each attribute of a dataclass, from its source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    found: dict[str, str] = {}
    name = ""
    for node in body.body if isinstance(body, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
            name = ""
        else:
            name = ""
    return found
