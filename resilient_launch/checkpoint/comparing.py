"""What a resume expects of a checkpoint's topology and code; a difference is loud, and fatal where configured so."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

import resilient_launch
from resilient_launch.checkpoint.store import Manifest
from resilient_launch.core.errors import CheckpointError

OnChange = Literal["error", "warn"]


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """What this start of the training is like."""

    world_size: int
    code_version: str
    on_topology_change: OnChange
    on_code_change: OnChange

    def compare(self, manifest: Manifest, layout: Mapping[str, Any]) -> list[str]:
        """Warnings for what differs. Raises CheckpointError where a difference is an error."""
        facts, warnings = manifest.facts, []
        if facts.world_size != self.world_size or dict(facts.layout) != dict(layout):
            what = (
                f"checkpoint {manifest.name} was saved by {facts.world_size} ranks, {_text(facts.layout)}; "
                f"now there are {self.world_size}, {_text(layout)}"
            )
            why = "training can go on but its results will not be bit-identical"
            if self.on_topology_change == "error":
                raise CheckpointError(what, why=why, hint="start with the same topology, or --allow topology")
            warnings.append(f"{what}: {why}")
        if self.code_version and facts.code_version and facts.code_version != self.code_version:
            what = f"checkpoint {manifest.name} was saved by code {facts.code_version}; this is {self.code_version}"
            if self.on_code_change == "error":
                raise CheckpointError(what, hint="go on with the code that saved it, or --allow code")
            warnings.append(what)
        return warnings


def own_versions() -> dict[str, str]:
    """What a checkpoint of ours says that it was made with."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "resilient_launch": resilient_launch.__version__,
    }


def _text(layout: Mapping[str, Any]) -> str:
    meshes = layout.get("meshes", ())
    return " ".join([str(layout.get("kind")), *(str(tuple(mesh["shape"])) for mesh in meshes)])
