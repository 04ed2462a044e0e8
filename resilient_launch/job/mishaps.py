"""Ends of a process at exact places inside a save, for rehearsals. The store knows nothing of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


def at_file_of_save(checkpoints: Path, step: int | None, *, num_files: int, end: Callable[[], None]) -> None:
    """Call ``end`` once a save below ``checkpoints`` has ``num_files`` files and begins another.

    ``step`` is the save meant; None means the next one. An audit hook can't be taken away again, so this is for
    processes that ``end`` ends.
    """
    seen: set[str] = set()
    prefix = f"{checkpoints}/.tmp-step-" + ("" if step is None else f"{step:08d}.")

    def watch(event: str, args: tuple[object, ...]) -> None:
        if event != "open" or not isinstance(args[0], str | bytes | os.PathLike):
            return
        path = os.fsdecode(args[0])
        if path.startswith(prefix) and path not in seen and isinstance(args[2], int) and args[2] & os.O_CREAT:
            if len(seen) == num_files:
                end()
            seen.add(path)

    sys.addaudithook(watch)
