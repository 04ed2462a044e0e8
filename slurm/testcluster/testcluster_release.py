#!/usr/bin/env python3
"""Slurm 24.11 beside the installed one: `testcluster_release.py DIR` puts Debian 13's packages into a folder.

Nothing is installed: apt fetches and checks the packages from the machine's own configured mirror with lists and a
cache of its own, dpkg unpacks them, and patchelf (unpacked with them) points the programs at the libraries in the
folder. They then run without a chroot, and jobs see the machine's own files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CODENAME = "trixie"
_PACKAGES = ("slurmctld", "slurmd", "slurmdbd", "slurm-client", "patchelf")
_DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "slurmdbd")
_CLIENTS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo", "sacct")
_TOOLS = ("apt-get", "dpkg", "dpkg-deb")
_FORMAT = "$(CREATED_BY)|$(COMPONENT)|$(CODENAME)|$(REPO_URI)"
_TIMEOUT_S = 300


class ReleaseError(Exception):
    """The folder could not be made; the text says why."""


def bin_dir(folder: Path) -> Path:
    """Where the programs are."""
    return folder / "bin"


def plugin_dir(folder: Path) -> Path:
    """What slurm.conf has to say for PluginDir."""
    return _libraries(folder) / "slurm-wlm"


def is_ready(folder: Path) -> bool:
    """Whether ``folder`` holds a whole Slurm that was made for this very place: its programs know it by name."""
    try:
        return (folder / "made-for").read_text() == _identity(folder.absolute())
    except OSError:
        return False


def _identity(folder: Path) -> str:
    return "\n".join((str(folder), *_PACKAGES))


def prepare(folder: Path) -> None:
    """Fill ``folder`` unless it is ready. Raises ReleaseError."""
    folder = folder.absolute()
    if is_ready(folder):
        return
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise ReleaseError(f"{', '.join(missing)} not found: Debian 13's packages need a Debian machine")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="rlaunch-apt-") as scratch:
        for package in _download(Path(scratch)):
            _run("dpkg-deb", "-x", str(package), str(folder))
    _relink(folder)
    shown = _run(str(bin_dir(folder) / "slurmctld"), "-V").strip()
    (folder / "made-for").write_text(_identity(folder))
    sys.stderr.write(f"{shown} is in {folder}\n")


def _libraries(folder: Path) -> Path:
    (found,) = (path.parent for path in folder.glob("usr/lib/*/slurm-wlm"))
    return found


def _mirror() -> str:
    """The package mirror that this machine's apt is configured for."""
    for line in _run("apt-get", "indextargets", "--format", _FORMAT).splitlines():
        created_by, component, codename, uri = line.split("|")
        if (created_by, component) == ("Packages", "main") and "-" not in codename:
            return uri
    raise ReleaseError("apt has no mirror of Debian's main packages configured")


def _download(scratch: Path) -> list[Path]:
    for name in ("lists/partial", "cache/archives/partial"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text(f"deb {_mirror()} {CODENAME} main\n")
    # The machine's own proxies, keys and timeouts still hold; only what is known and installed differs.
    settings = {
        "Dir::State": scratch,
        "Dir::State::Lists": scratch / "lists",
        "Dir::State::Status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::SourceList": scratch / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "APT::Sandbox::User": "",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run("apt-get", *options, "-q", "update", "--error-on=any")
    _run(
        "apt-get", *options, "-q", "-y", "--no-install-recommends", "-o", "Dpkg::Use-Pty=0", "-o",
        "Binary::apt-get::APT::Keep-Downloaded-Packages=true", "--download-only", "install", *_PACKAGES,
    )  # fmt: skip
    return sorted((scratch / "cache" / "archives").glob("*.deb"))


def _relink(folder: Path) -> None:
    libraries = _libraries(folder)
    (loader,) = folder.glob("usr/lib*/ld-linux-*.so.*")
    patchelf = (str(loader), "--library-path", str(libraries), str(folder / "usr/bin/patchelf"))
    bin_dir(folder).mkdir()
    places = [(name, (folder / f"usr/sbin/{name}-wlm", folder / f"usr/sbin/{name}")) for name in _DAEMONS]
    sources = [(name, next(path for path in paths if path.exists())) for name, paths in places]
    sources += [(name, folder / "usr/bin" / name) for name in _CLIENTS]
    for name, source in sources:
        program = bin_dir(folder) / name
        shutil.copy2(source, program)
        # An RPATH, unlike a RUNPATH, also serves the libraries of the plugins that the program loads.
        path = f"{libraries}:{plugin_dir(folder)}"
        _run(*patchelf, "--set-interpreter", str(loader), "--force-rpath", "--set-rpath", path, str(program))


def _run(*command: str) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        words = "\n".join((done.stdout + done.stderr).splitlines()[-8:])
        raise ReleaseError(f"{' '.join(command[:1] + command[-2:])} ended with {done.returncode}:\n{words}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description="Slurm of Debian 13 (24.11) in a folder, nothing installed.")
    parser.add_argument("directory", metavar="DIR", type=Path)
    try:
        prepare(parser.parse_args().directory)
    except (ReleaseError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"error: Slurm 24.11 cannot be prepared: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
