"""The torch-free store: checkpoints that appear whole or not at all, and that verify when they are read."""

from resilient_launch.checkpoint.store.board import Board, LocalBoard
from resilient_launch.checkpoint.store.choose import (
    Choice,
    Lineage,
    OpenCheckpoint,
    Standing,
    Verdict,
    choose,
    load,
    open_checkpoint,
    published,
    read_verified,
)
from resilient_launch.checkpoint.store.commit import Digesting, Published, publish, write_buffers
from resilient_launch.checkpoint.store.errors import (
    DamagedError,
    FencedError,
    ForeignError,
    UnreadableError,
    UnsupportedError,
)
from resilient_launch.checkpoint.store.litter import fence, sweep
from resilient_launch.checkpoint.store.manifest import Facts, FileEntry, Manifest
from resilient_launch.checkpoint.store.prune import described, prune
from resilient_launch.checkpoint.store.rounds import Round, Rounds
from resilient_launch.checkpoint.store.survey import Found, survey
from resilient_launch.checkpoint.store.verify import Integrity, Problem, Verified, verify

__all__ = [
    "Board",
    "Choice",
    "DamagedError",
    "Digesting",
    "Facts",
    "FencedError",
    "FileEntry",
    "ForeignError",
    "Found",
    "Integrity",
    "Lineage",
    "LocalBoard",
    "Manifest",
    "OpenCheckpoint",
    "Problem",
    "Published",
    "Round",
    "Rounds",
    "Standing",
    "UnreadableError",
    "UnsupportedError",
    "Verdict",
    "Verified",
    "choose",
    "described",
    "fence",
    "load",
    "open_checkpoint",
    "prune",
    "publish",
    "published",
    "read_verified",
    "survey",
    "sweep",
    "verify",
    "write_buffers",
]
