"""The code of a run: which files count, what copies keep, and when the version changes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from resilient_launch.core.errors import UsageError
from resilient_launch.job import code


def _tree(directory: Path) -> Path:
    for name in ("train.py", "pkg/model.py", "pkg/sub dir/é.py", "data/big.ckpt", ".hidden/x.py", "pkg/.secret"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    (directory / "pkg/__pycache__").mkdir()
    (directory / "pkg/__pycache__/model.pyc").write_bytes(b"x")
    (directory / "env").mkdir()
    (directory / "env/pyvenv.cfg").touch()
    (directory / "env/lib.py").touch()
    (directory / "runs/one").mkdir(parents=True)
    (directory / "runs/one/verdict.json").touch()
    return directory


def _names(directory: Path, *exclude: str) -> list[str]:
    return [str(path) for path in code.list_files(directory, exclude, outside=directory / "runs")]


def _git(directory: Path, *arguments: str) -> None:
    identity = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(
        ["git", "-C", str(directory), *arguments],
        check=True,
        capture_output=True,
        env={**os.environ, **identity, **who},
    )


def test_outside_git_every_file_counts_that_is_not_hidden_nor_installed(tmp_path: Path) -> None:
    _tree(tmp_path)
    assert _names(tmp_path) == ["data/big.ckpt", "pkg/model.py", "pkg/sub dir/é.py", "train.py"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("data/*", ["pkg/model.py", "pkg/sub dir/é.py", "train.py"]),
        ("*.ckpt", ["pkg/model.py", "pkg/sub dir/é.py", "train.py"]),
        ("model.py", ["data/big.ckpt", "pkg/sub dir/é.py", "train.py"]),
        ("pkg/*", ["data/big.ckpt", "train.py"]),
    ],
)
def test_excludes_are_patterns_of_paths_or_names(tmp_path: Path, pattern: str, left: list[str]) -> None:
    assert _names(_tree(tmp_path), pattern) == left


def test_in_git_what_is_tracked_or_neither_tracked_nor_ignored_counts(tmp_path: Path) -> None:
    _tree(tmp_path)
    (tmp_path / ".gitignore").write_text("data/\nenv/\n__pycache__/\n.secret\nruns/\n")
    _git(tmp_path, "init", "-q")
    _git(tmp_path, "add", "train.py")
    assert _names(tmp_path) == [".gitignore", ".hidden/x.py", "pkg/model.py", "pkg/sub dir/é.py", "train.py"]
    # A file that is tracked and deleted has nothing to copy.
    (tmp_path / "train.py").unlink()
    assert "train.py" not in _names(tmp_path)


def test_a_sub_directory_of_a_work_tree_is_its_own_code(tmp_path: Path) -> None:
    _tree(tmp_path)
    _git(tmp_path, "init", "-q")
    assert _names(tmp_path / "pkg", ".*") == ["__pycache__/model.pyc", "model.py", "sub dir/é.py"]


def test_links_that_lead_out_pipes_and_large_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "outside.py").touch()
    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").touch()
    (work / "out.py").symlink_to("../outside.py")
    (work / "in.py").symlink_to("train.py")
    (work / "broken.py").symlink_to("nowhere")
    os.mkfifo(work / "pipe")
    with (work / "weights.bin").open("wb") as file:
        file.truncate(code.MAX_FILE_BYTES + 1)
    with (work / "fits.bin").open("wb") as file:
        file.truncate(code.MAX_FILE_BYTES)
    assert _names(work) == ["fits.bin", "in.py", "train.py"]


def test_too_much_to_be_code_is_refused_with_a_way_out(tmp_path: Path) -> None:
    for number in range(code.MAX_TOTAL_BYTES // code.MAX_FILE_BYTES + 1):
        with (tmp_path / f"{number}.bin").open("wb") as file:
            file.truncate(code.MAX_FILE_BYTES)
    with pytest.raises(UsageError, match="snapshot: false"):
        _names(tmp_path)
    assert len(_names(tmp_path, "1*")) < 32


def test_a_copy_has_the_bytes_and_the_modes(tmp_path: Path) -> None:
    work = _tree(tmp_path / "work")
    (work / "train.py").chmod(0o755)
    files = code.list_files(work, (), outside=work / "runs")
    code.copy(work, files, tmp_path / "copy")
    copied = sorted(
        str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()
    )
    assert copied == [str(path) for path in files]
    assert (tmp_path / "copy/train.py").stat().st_mode & 0o777 == 0o755
    assert code.version(work, files) == code.version(work, files, tree_at=tmp_path / "copy")


def test_the_version_changes_with_content_name_and_set_of_files(tmp_path: Path) -> None:
    _tree(tmp_path)
    files = code.list_files(tmp_path, (), outside=tmp_path / "runs")
    seen = [code.version(tmp_path, files)]
    assert seen[0].startswith("nogit+") and code.version(tmp_path, files) == seen[0]
    (tmp_path / "train.py").write_text("edited")
    seen.append(code.version(tmp_path, files))
    seen.append(code.version(tmp_path, files[:-1]))
    (tmp_path / "train.py").rename(tmp_path / "train2.py")
    seen.append(code.version(tmp_path, [*files[:-1], Path("train2.py")]))
    assert len(set(seen)) == len(seen)


def test_the_version_names_gits_head_and_sees_uncommitted_edits(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("one")
    _git(tmp_path, "init", "-q")
    files = [Path("train.py")]
    assert code.version(tmp_path, files).startswith("nogit+")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "one")
    head = subprocess.run(["git", "-C", str(tmp_path), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    clean = code.version(tmp_path, files)
    assert clean.startswith(f"{head[:12]}+")
    (tmp_path / "train.py").write_text("two")
    assert code.version(tmp_path, files) != clean
