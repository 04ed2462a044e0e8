"""Our own store, broken on purpose in a copy of the package: some part of the campaigns must notice, and says which."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaigns.tally import Tally, hold, say

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = "resilient_launch"
PARTS = ("crash-points", "errors", "damage", "reordering", "power-cuts")
TIMEOUT_S = 900
COMMIT, FILES, LITTER = "checkpoint/store/commit.py", "checkpoint/store/files.py", "checkpoint/store/litter.py"
OBJECTS, PROCESS = "checkpoint/store/objects.py", "checkpoint/background/process.py"
PRUNE, DURABLE = "checkpoint/store/prune.py", "core/durable.py"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """``patches`` are (file, text that is there exactly once, replacement); ``part`` is one that notices for sure."""

    name: str
    part: str
    patches: tuple[tuple[str, str, str], ...]


MUTATIONS = (
    Mutation(
        name="no fsync of the checkpoint's directory",
        part="reordering",
        patches=((COMMIT, "manifest.render())\n        fsync_dir(temporary)\n", "manifest.render())\n"),),
    ),
    Mutation(
        name="no fsync of the directory with the checkpoint's name",
        part="reordering",
        # The pointer to the newest checkpoint, written next, would do it too.
        patches=(
            (COMMIT, "        fsync_dir(final.parent)\n", "        pass\n"),
            (
                DURABLE,
                "        temporary.replace(path)\n    fsync_dir(path.parent)\n",
                "        temporary.replace(path)\n",
            ),
        ),
    ),
    Mutation(
        name="the manifest is written first, the data after it",
        part="crash-points",
        # The data is kept back until the checkpoint is published, and goes where it is then.
        patches=(
            (
                FILES,
                "        self._hash = new_hash(algorithm)\n        self._chunks",
                "        LATE.append(self)\n"
                "        self.late = bytearray()\n        self._hash = new_hash(algorithm)\n        self._chunks",
            ),
            (
                FILES,
                "        try:\n            while view:\n                view = view[os.write",
                "        self.late += view\n"
                "        view = view[:0]\n        try:\n            while view:\n                view = view[os.write",
            ),
            (FILES, "class FileWriter:", "LATE: list['FileWriter'] = []\n\n\nclass FileWriter:"),
            (COMMIT, "            if size != entry.size:", "            if False:"),
            (
                COMMIT,
                "            commit_directory(temporary, directory / str(ident), manifest)\n",
                "            commit_directory(temporary, directory / str(ident), manifest)\n"
                "            from resilient_launch.checkpoint.store import files as late\n"
                "            for each in late.LATE:\n"
                "                with (directory / str(ident) / each.path.name).open('wb') as file:\n"
                "                    file.write(each.late)\n"
                "                    file.flush()\n"
                "                    os.fsync(file.fileno())\n"
                "            late.LATE.clear()\n",
            ),
        ),
    ),
    Mutation(
        name="no check of the hash",
        part="damage",
        patches=((FILES, "if found != self._entry.chunks[chunk]:", "if False:"),),
    ),
    Mutation(
        name="the step's directory is written in place, and used again",
        part="crash-points",
        patches=(
            (
                COMMIT,
                "    temporary = final if without_rename else directory / temporary_name(ident)\n",
                "    temporary = final\n",
            ),
            (COMMIT, "            temporary.mkdir(0o755)\n", "            temporary.mkdir(0o755, exist_ok=True)\n"),
            (COMMIT, "    if os.path.lexists(final):", "    if False:"),
            (FILES, "os.O_CREAT | os.O_EXCL |", "os.O_CREAT | os.O_TRUNC |"),
        ),
    ),
    Mutation(
        name="no fsync of the data",
        part="reordering",
        patches=((FILES, "            os.fsync(self._fd)\n", "            pass\n"),),
    ),
    Mutation(
        name="retention goes by the step alone",
        part="crash-points",
        patches=(
            (
                PRUNE,
                "    return [ident for ident in doomed if discard",
                "    doomed = [item.id for item in sorted(items, key=lambda item: -item.id.step)[2:]]\n"
                "    return [ident for ident in doomed if discard",
            ),
        ),
    ),
    Mutation(
        name="what retention removes is removed in place",
        part="crash-points",
        patches=((LITTER, "        path.rename(trash)\n", "        trash = path\n"),),
    ),
    Mutation(
        name="a save that failed leaves its directory",
        part="errors",
        patches=((COMMIT, "    except BaseException:\n        discard(temporary)\n", "    except BaseException:\n"),),
    ),
    Mutation(
        name="a failed fsync is passed over",
        part="errors",
        patches=(
            (
                FILES,
                'raise write_error(error, "checkpoint file can\'t be made durable", self.path) from error\n',
                "pass\n",
            ),
        ),
    ),
    Mutation(
        name="an error of the background's writer is passed over",
        part="background",
        patches=(
            (
                PROCESS,
                '        except CheckpointError as error:\n            return {"op": "failed", ',
                "        except CheckpointError as error:\n"
                '            channel.send({"op": "durable", "num_bytes": 0, "write_s": 0.0, "commit_s": 0.0})\n'
                '            return {"op": "done", ',
            ),
        ),
    ),
    Mutation(
        name="a worker group that starts again does not fence the one before",
        part="background",
        patches=((LITTER, "(ident.attempt, ident.restart) >= (attempt, restart)", "ident.attempt >= attempt"),),
    ),
    Mutation(
        name="a copy without rename begins with its manifest",
        part="crash-points",
        patches=(
            (OBJECTS, "            self._commit(manifest, directory)\n        return True", "        return True"),
            (
                OBJECTS,
                "                self._fs.makedirs(directory, exist_ok=True)\n",
                "                self._fs.makedirs(directory, exist_ok=True)\n"
                "            self._commit(manifest, directory)\n",
            ),
        ),
    ),
    Mutation(
        name="a claim appears before its content",
        part="crash-points",
        patches=(
            (
                DURABLE,
                "        write_file(temporary, data, mode=mode)\n        try:\n            mine",
                "        temporary.touch()\n        try:\n            mine",
            ),
            (
                DURABLE,
                "        else:\n            won = True\n",
                "        else:\n            path.write_bytes(data)\n            won = True\n",
            ),
        ),
    ),
)


def _parts(mutation: Mutation, *, is_long: bool) -> list[str]:
    return [mutation.part, *(part for part in PARTS if is_long and part != mutation.part)]


def mutations(tally: Tally) -> None:
    """The long form asks every part about each mutation, the short one asks the part that is sure to notice."""
    for mutation in MUTATIONS:
        if not tally.wants(mutation.name):
            continue
        with tally.case("mutations", mutation.name), tempfile.TemporaryDirectory(prefix="rlaunch-mutant-") as scratch:
            _write_mutant(mutation, Path(scratch))
            caught = {}
            for part in _parts(mutation, is_long=tally.is_long):
                if seen := _notices(part, Path(scratch), seed=tally.seed):
                    caught[part] = seen
            hold(mutation.part in caught, "nobody noticed" if not caught else f"only {', '.join(caught)} noticed")
            tally.counts["mutations caught"] += 1
            say(f"caught: {mutation.name}: " + "; ".join(f"{part} ({seen})" for part, seen in caught.items()))


def _write_mutant(mutation: Mutation, at: Path) -> None:
    shutil.copytree(REPOSITORY / PACKAGE, at / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in mutation.patches:
        path = at / PACKAGE / file
        text = path.read_text()
        hold(text.count(old) == 1, f"the patch does not apply to {file}: {old!r} is there {text.count(old)} times")
        path.write_text(text.replace(old, new))


def _notices(part: str, mutant: Path, *, seed: int) -> str:
    """The first failure of one part against the mutant; empty where there is none."""
    # -P: the working directory has the sound package.
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.faults.campaigns", part, "--first", "--json", "--seed", str(seed)],
        env={**os.environ, "PYTHONPATH": f"{mutant}{os.pathsep}{REPOSITORY}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        hold(False, f"{part} broke down", done.stderr[-2000:])
    hold(found["package"].startswith(str(mutant)), "another package was tried", found["package"])
    return next((f"{each['case']}: {each['what']}"[:160] for each in found["failures"]), "")
