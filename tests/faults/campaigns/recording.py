"""What an operation did to the disk, read from strace's record of it: writes, names and syncs, each of one inode."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.campaigns.tracing import DONE, run

ROOT = 0
_LINE = re.compile(r"\d+ +(\w+)\((.*)\)\s+= (-?\d+|\?)(.*)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_HARMLESS = frozenset(
    {"read", "pread64", "readv", "preadv", "preadv2", "newfstatat", "fstat", "stat", "lstat", "statx", "lseek", "fcntl"}
    | {"getdents64", "ioctl", "access", "faccessat2", "readlink", "readlinkat", "poll", "getcwd", "chdir", "fadvise64"}
)
MARK = "/dev/null"


@dataclass(frozen=True, kw_only=True)
class Data:
    """Bytes written to a file."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Names of one directory that change together: each gets an inode, or None when it goes."""

    inode: int
    names: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, kw_only=True)
class Sync:
    """Everything done to this inode before is safe from here on."""

    inode: int


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What the operation said of itself at this point, such as that a save was reported durable."""

    text: str


Step = Data | Entry | Sync | Mark


@dataclass
class Recording:
    """``steps`` in their order; ``directories`` are the inodes that are one. The root, ROOT, was there before."""

    steps: list[Step] = field(default_factory=list)
    directories: set[int] = field(default_factory=lambda: {ROOT})
    _place: str = ""
    _names: dict[str, int] = field(default_factory=dict)
    _open: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    _num_inodes: int = 1

    def add(self, name: str, arguments: str, result: int) -> None:
        """One successful system call."""
        if name == "openat":
            self._open_file(arguments, result)
        elif name in ("write", "pwrite64", "fsync", "fdatasync", "close", "ftruncate"):
            self._use_file(name, arguments, result)
        elif name in ("mkdir", "rename", "unlink", "rmdir", "link", "unlinkat"):
            self._change_names(name, arguments)
        elif name not in _HARMLESS and self._place.encode().hex() in arguments.replace("\\x", ""):
            raise NotImplementedError(f"the model does not know what {name}({arguments[:200]}) does")

    def _open_file(self, arguments: str, fd: int) -> None:
        (path,) = self._paths(arguments)
        if path == MARK:
            self._open[fd] = (MARK, -1, 0)
        elif self._is_ours(path):
            flags = arguments.rsplit('"', 1)[1]
            if path not in self._names:
                self._names[path] = self._new()
                self._entry(path, self._names[path])
            elif "O_TRUNC" in flags:
                raise NotImplementedError(f"{path} is cut while its name is in use")
            self._open[fd] = (path, self._names[path], 0)

    def _use_file(self, name: str, arguments: str, result: int) -> None:
        fd = int(re.match(r"\d+", arguments)[0])  # type: ignore[index]
        if fd not in self._open:
            return
        path, inode, offset = self._open[fd]
        if name == "close":
            del self._open[fd]
        elif name in ("fsync", "fdatasync"):
            self.steps.append(Sync(inode=inode))
        elif name == "ftruncate":
            raise NotImplementedError(f"{path} is cut")
        else:
            data = _strings(arguments)[0][:result]
            if path == MARK:
                self.steps.append(Mark(text=data.decode()))
                return
            at = int(arguments.rsplit(", ", 1)[1]) if name == "pwrite64" else offset
            self.steps.append(Data(inode=inode, offset=at, data=data))
            if name == "write":
                self._open[fd] = (path, inode, offset + result)

    def _change_names(self, name: str, arguments: str) -> None:
        paths = self._paths(arguments)
        if not self._is_ours(paths[0]):
            return
        if name == "mkdir":
            inode = self._new()
            self.directories.add(inode)
            self._names[paths[0]] = inode
            self._entry(paths[0], inode)
        elif name == "link":
            self._names[paths[1]] = self._names[paths[0]]
            self._entry(paths[1], self._names[paths[0]])
        elif name == "rename":
            old, new = paths
            if Path(old).parent != Path(new).parent:
                raise NotImplementedError(f"{old} moves to another directory")
            moved = {each: inode for each, inode in self._names.items() if (each + "/").startswith(old + "/")}
            for each, inode in moved.items():
                del self._names[each]
                self._names[new + each.removeprefix(old)] = inode
            self._open = {fd: (_moved(path, old, new), *rest) for fd, (path, *rest) in self._open.items()}  # type: ignore[misc]
            self._entry(new, self._names[new], also=(Path(old).name, None))
        else:
            self._names.pop(paths[0])
            self._entry(paths[0], None)

    def _entry(self, path: str, inode: int | None, also: tuple[str, int | None] | None = None) -> None:
        parent = str(Path(path).parent)
        names = ((Path(path).name, inode),) if also is None else (also, (Path(path).name, inode))
        self.steps.append(Entry(inode=self._names[parent], names=names))

    def _paths(self, arguments: str) -> list[str]:
        base = re.match(r"(\d+)", arguments)
        found = [text.decode() for text in _strings(arguments)]
        if base is not None and found and not found[0].startswith("/"):
            where = self._open.get(int(base[1]))
            return [f"{where[0] if where else '?'}/{found[0]}"]
        return found

    def _is_ours(self, path: str) -> bool:
        return path == self._place or path.startswith(self._place + "/")

    def _new(self) -> int:
        self._num_inodes += 1
        return self._num_inodes - 1


def record(act: Callable[[Path], object], place: Path) -> Recording:
    """What ``act`` does below ``place``, an empty directory. Raises NotImplementedError for what has no model."""
    ended = run(lambda: act(place), "-e", "trace=%file,%desc", "-xx", "-s", str(1 << 24))
    assert ended.code == DONE, ended.text
    found = Recording()
    found._place = str(place)
    found._names[str(place)] = ROOT
    for line in ended.trace:
        match = _LINE.fullmatch(line)
        if match is not None and match[3] != "?" and int(match[3]) >= 0:
            found.add(match[1], match[2], int(match[3]))
    return found


def say_mark(text: str) -> None:
    """Put a mark into the record of the operation that calls this."""
    with Path(MARK).open("wb", buffering=0) as file:
        file.write(text.encode())


def _moved(path: str, old: str, new: str) -> str:
    return new + path.removeprefix(old) if (path + "/").startswith(old + "/") else path


def _strings(arguments: str) -> list[bytes]:
    found = []
    for text, cut in _STRING.findall(arguments):
        assert not cut, "strace cut a string"
        found.append(bytes.fromhex(text.replace("\\x", "")))
    return found
