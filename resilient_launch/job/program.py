"""What a worker runs: a script, a module or a command; and how a process that is Python already runs the first two."""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType


@dataclass(frozen=True, kw_only=True)
class Program:
    """Exactly one of ``script``, ``module`` and ``command`` is set; ``python`` runs the first two, with ``args``."""

    python: str
    script: str | None = None
    module: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """The command line of a worker that is started by itself."""
        if self.script is not None:
            return [self.python, self.script, *self.args]
        if self.module is not None:
            # -P keeps the working directory, which may have been edited since, out of the module search.
            return [self.python, "-P", "-m", self.module, *self.args]
        return [*self.command, *self.args]

    def search_path(self, python_path: str, rest: Sequence[str]) -> list[str]:
        """The ``sys.path`` that the worker would start with: ``rest`` is what follows the entries of PYTHONPATH."""
        front = []
        if self.script is not None and not sys.flags.safe_path:
            front = [str(Path(self.script).resolve().parent)]
        front += _entries(python_path)
        return list(dict.fromkeys([*front, *rest]))


def own_search_path() -> list[str]:
    """What this interpreter, started with -m, has behind the working directory and the entries of PYTHONPATH."""
    own = _entries(os.environ.get("PYTHONPATH", ""))
    skip = 0 if sys.flags.safe_path else 1
    return [entry for entry in sys.path[skip:] if entry not in own]


def _entries(python_path: str) -> list[str]:
    """Where PYTHONPATH points to, as the interpreter writes it: absolute, and symbolic links as they are."""
    return [os.path.abspath(entry) for entry in python_path.split(os.pathsep) if entry]  # noqa: PTH100


def imported_from_elsewhere(search_path: list[str]) -> list[str]:
    """Top-level modules that this process has imported and that ``search_path`` would find in another place."""
    found = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if "." in name or name == "__main__" or origin is None or not Path(origin).is_absolute():
            continue
        other = PathFinder.find_spec(name, search_path)
        # Not found there, another finder may know it, as for a package that is installed in place.
        if (
            other is not None
            and other.origin is not None
            and os.path.realpath(other.origin) != os.path.realpath(origin)
        ):
            found.append(name)
    return found


def run_as_main(program: Program) -> None:
    """Run a script or module as the interpreter itself would, in ``__main__``; ``sys.path`` and environment are set.

    Raises whatever it raises. Meant to be the last thing that this process does.
    """
    if program.script is not None:
        code: CodeType = compile(Path(program.script).read_bytes(), program.script, "exec", dont_inherit=True)
        spec, origin = None, program.script
    else:
        spec = _main_spec(program.module or "")
        assert spec.loader is not None and spec.origin is not None
        code, origin = spec.loader.get_code(spec.name), spec.origin  # type: ignore[attr-defined]
    sys.argv[:] = [origin, *program.args]
    # A new one, which is cleared away at the exit, for a file that nobody closed: the old one is frozen.
    main = sys.modules["__main__"] = ModuleType("__main__")
    namespace = vars(main)
    namespace.update(
        __name__="__main__",
        __file__=origin,
        __builtins__=builtins,
        __spec__=spec,
        __package__=spec.parent if spec else None,
        __loader__=spec.loader if spec else None,
        __doc__=None,
        __annotations__={},
    )
    exec(code, namespace)


def _main_spec(module: str) -> ModuleSpec:
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{module}.__main__")
    if spec is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    return spec
