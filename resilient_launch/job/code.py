"""The code that a run executes: a copy made at submit, and a version that says when it changed."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from resilient_launch.core.errors import UsageError

MAX_FILE_BYTES = 8 * 2**20
MAX_TOTAL_BYTES = 256 * 2**20
MAX_FILES = 20_000
_SKIPPED_NAMES = frozenset({"__pycache__", "node_modules", "venv"})


def list_files(workdir: Path, exclude: Sequence[str], *, outside: Path) -> list[Path]:
    """The files, relative to ``workdir``, that count as its code.

    In a git work tree: what git tracks, and what it neither tracks nor ignores. Elsewhere: every file that is not
    hidden nor in a virtual environment. Files over 8 MiB, links that lead out, ``outside`` (the runs themselves) and
    what ``exclude`` matches are left out. Raises UsageError when it is too much to be code.
    """
    listed = _git_files(workdir)
    found, total = [], 0
    for path in sorted(_walk(workdir, outside) if listed is None else listed):
        if any(fnmatch.fnmatch(str(path), pattern) or fnmatch.fnmatch(path.name, pattern) for pattern in exclude):
            continue
        full = workdir / path
        if not full.is_file() or full.is_relative_to(outside) or not full.resolve().is_relative_to(workdir.resolve()):
            continue
        size = full.stat().st_size
        if size > MAX_FILE_BYTES:
            continue
        found.append(path)
        total += size
        if total > MAX_TOTAL_BYTES or len(found) > MAX_FILES:
            raise UsageError(
                f"the code in {str(workdir)!r}",
                where="workdir",
                why=f"is more than {MAX_FILES} files or {MAX_TOTAL_BYTES >> 20} MiB",
                hint="code: {exclude: ['data/*']}, or code: {snapshot: false}",
            )
    return found


def version(workdir: Path, files: Sequence[Path], *, tree_at: Path | None = None) -> str:
    """What the code is: git's HEAD in ``workdir``, and a hash over every file's name and content.

    ``tree_at`` is where the files are read, ``workdir`` unless given. HEAD is for people; what differs, the hash shows.
    """
    tree = hashlib.sha256()
    for path in files:
        name = os.fsencode(path)
        content = ((tree_at or workdir) / path).read_bytes()
        tree.update(len(name).to_bytes(8, "little") + name + len(content).to_bytes(8, "little") + content)
    head = _git(workdir, "rev-parse", "--short=12", "HEAD")
    prefix = head.decode().strip() if head else "nogit"
    return f"{prefix}+{tree.hexdigest()[:16]}"


def copy(workdir: Path, files: Sequence[Path], target: Path) -> None:
    """Copy the files, keeping their modes, under ``target``, which must not exist."""
    target.mkdir(mode=0o755)
    for path in files:
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(workdir / path, place)


def _git(workdir: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(workdir), *arguments], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git_files(workdir: Path) -> list[Path] | None:
    output = _git(workdir, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if output is None:
        return None
    return [Path(os.fsdecode(name)) for name in output.split(b"\0") if name]


def _walk(workdir: Path, outside: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(workdir):
        here = Path(directory)
        names[:] = [
            name
            for name in names
            if not name.startswith(".")
            and name not in _SKIPPED_NAMES
            and here / name != outside
            and not (here / name / "pyvenv.cfg").exists()
        ]
        yield from ((here / name).relative_to(workdir) for name in files if not name.startswith("."))
