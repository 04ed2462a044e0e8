"""The store's rules, from one process: what is published, what is chosen, what is put aside, what is removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resilient_launch.checkpoint import store
from resilient_launch.checkpoint.store.manifest import parse_manifest, seal
from resilient_launch.core.errors import CheckpointError, UsageError
from resilient_launch.core.ids import CheckpointId
from resilient_launch.policy.retention import newest

SMALL_CHUNKS = store.Digesting(chunk_bytes=16)


def ident(step: int, *, attempt: int = 0, restart: int = 0) -> CheckpointId:
    return CheckpointId(attempt=attempt, restart=restart, step=step)


def save(directory: Path, step: int, *, attempt: int = 0, run_id: str = "", fill: bytes = b"") -> Path:
    data = fill or bytes([step % 256]) * 100
    facts = store.Facts(run_id=run_id, reason="test")
    buffers = {"a.bin": data, "b.bin": b""}
    published = store.write_buffers(directory, ident(step, attempt=attempt), buffers, facts, digesting=SMALL_CHUNKS)
    return directory / str(published.id)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def standings(choice: store.Choice[None]) -> list[tuple[str, str]]:
    return [(verdict.name, str(verdict.standing)) for verdict in choice.verdicts]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = save(tmp_path, 300)
    assert path.name == "step-00000300.a0000.r0"
    assert names(tmp_path) == {path.name, "LATEST"}
    assert (tmp_path / "LATEST").read_text() == f"{path.name}\n"
    assert store.read_verified(path, "a.bin") == bytes([300 % 256]) * 100
    assert store.read_verified(path, "b.bin") == b""


def test_the_store_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, resilient_launch.checkpoint.store; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("algorithm", ["xxh3-128", "blake2b", "blake3", "sha256"])
def test_every_digest_algorithm_finds_a_flipped_bit(tmp_path: Path, algorithm: str) -> None:
    digesting = store.Digesting(algorithm=algorithm, chunk_bytes=64)
    store.write_buffers(tmp_path, ident(1), {"a": bytes(1000)}, digesting=digesting)
    assert store.choose(tmp_path).manifest is not None
    flip(tmp_path / str(ident(1)) / "a", 999)
    assert store.choose(tmp_path).manifest is None


def test_an_unknown_digest_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="xxh3-128"):
        store.write_buffers(tmp_path, ident(1), {"a": b"1"}, digesting=store.Digesting(algorithm="md5"))
    assert names(tmp_path) == set()


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def damage_bit(path: Path) -> None:
    flip(path / "a.bin", 50)


def damage_truncate(path: Path) -> None:
    os.truncate(path / "a.bin", 99)


def damage_append(path: Path) -> None:
    with (path / "a.bin").open("ab") as file:
        file.write(b"x")


def damage_remove_file(path: Path) -> None:
    (path / "a.bin").unlink()


def damage_symlink(path: Path) -> None:
    (path / "a.bin").rename(path.parent / "elsewhere")
    (path / "a.bin").symlink_to(path.parent / "elsewhere")


def damage_fifo(path: Path) -> None:
    (path / "a.bin").unlink()
    os.mkfifo(path / "a.bin")


def damage_remove_manifest(path: Path) -> None:
    (path / "MANIFEST.json").unlink()


def damage_empty_manifest(path: Path) -> None:
    (path / "MANIFEST.json").write_bytes(b"")


def damage_swap_manifest(path: Path) -> None:
    other = path.parent / str(ident(10)) / "MANIFEST.json"
    (path / "MANIFEST.json").write_bytes(other.read_bytes())


DAMAGES = [
    damage_bit,
    damage_truncate,
    damage_append,
    damage_remove_file,
    damage_symlink,
    damage_fifo,
    damage_remove_manifest,
    damage_empty_manifest,
    damage_swap_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.removeprefix("damage_"))
def test_a_damaged_one_goes_to_quarantine_and_an_older_one_is_used(tmp_path: Path, damage) -> None:
    old, new = save(tmp_path, 10), save(tmp_path, 20)
    damage(new)
    choice = store.choose(tmp_path)
    assert choice.manifest is not None and choice.manifest.id == ident(10)
    assert standings(choice) == [(new.name, "damaged"), (old.name, "chosen")]
    assert choice.verdicts[0].quarantined_as == f"{new.name}.corrupt"
    assert names(tmp_path) >= {old.name, f"{new.name}.corrupt"} and new.name not in names(tmp_path)
    # The step can be saved again by the next attempt.
    save(tmp_path, 20, attempt=1)


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    path = save(tmp_path, 10) / "MANIFEST.json"
    data = path.read_bytes()
    for offset in range(len(data)):
        torn = bytearray(data)
        torn[offset] ^= 1
        with pytest.raises(store.DamagedError):
            parse_manifest(bytes(torn), path)
    for length in range(0, len(data), 7):
        with pytest.raises(store.DamagedError):
            parse_manifest(data[:length], path)


@pytest.mark.parametrize("name", ["../escape", "/etc/passwd", "a/b", "..", ".hidden", "", "MANIFEST.json", "a\nb"])
def test_a_manifest_cannot_reach_outside_its_directory(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 10)
    manifest = store.open_checkpoint(path).manifest
    entry = store.FileEntry(name=name, size=0, digest=manifest.file("b.bin").digest, chunk_bytes=16, chunks=())
    forged = store.Manifest(id=manifest.id, uuid="x", saved_at=0.0, facts=manifest.facts, files=(entry,))
    (path / "MANIFEST.json").write_bytes(forged.render())
    with pytest.raises(store.DamagedError, match="not allowed"):
        store.open_checkpoint(path)
    with pytest.raises(ValueError, match="not allowed"):
        store.write_buffers(tmp_path, ident(11), {name: b""})
    assert not (tmp_path / str(ident(11))).exists()


def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    save(tmp_path, 10)
    path = save(tmp_path, 20)
    record = json.loads((path / "MANIFEST.json").read_text())
    del record["manifest_digest"]
    record["format"]["major"] = 2
    (path / "MANIFEST.json").write_bytes(seal(record))
    with pytest.raises(store.UnsupportedError, match="reads format 1"):
        store.choose(tmp_path)
    assert path.exists()


def test_the_newest_of_the_lineage_is_chosen_not_the_largest_step(tmp_path: Path) -> None:
    save(tmp_path, 5000, attempt=0)
    save(tmp_path, 300, attempt=1)
    choice = store.choose(tmp_path)
    assert choice.manifest is not None and choice.manifest.id == ident(300, attempt=1)


def test_what_an_older_attempt_published_after_the_claim_is_put_aside(tmp_path: Path) -> None:
    listed = save(tmp_path, 10, attempt=0)
    late = save(tmp_path, 20, attempt=0)
    lineage = store.Lineage(attempt=1, allowed=frozenset({listed.name}))
    choice = store.choose(tmp_path, lineage)
    assert choice.manifest is not None and choice.manifest.id == ident(10)
    assert standings(choice) == [(late.name, "fenced"), (listed.name, "chosen")]
    assert names(tmp_path) == {listed.name, f"{late.name}.fenced", "LATEST"}


def test_an_attempts_own_checkpoints_need_no_list(tmp_path: Path) -> None:
    save(tmp_path, 10, attempt=1)
    choice = store.choose(tmp_path, store.Lineage(attempt=1, allowed=frozenset()))
    assert choice.manifest is not None and choice.manifest.id == ident(10, attempt=1)


def test_an_attempt_that_was_replaced_condemns_nothing(tmp_path: Path) -> None:
    newer = save(tmp_path, 10, attempt=2)
    with pytest.raises(store.FencedError, match="attempt 1 has been replaced"):
        store.choose(tmp_path, store.Lineage(attempt=1, allowed=frozenset()))
    assert newer.exists()


def test_another_runs_checkpoint_is_not_used_nor_condemned(tmp_path: Path) -> None:
    own = save(tmp_path, 10, run_id="mine")
    foreign = save(tmp_path, 20, run_id="other")
    choice = store.choose(tmp_path, store.Lineage(run_id="mine"))
    assert standings(choice) == [(foreign.name, "foreign"), (own.name, "chosen")]
    assert foreign.exists()


def test_no_fresh_start_over_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    save(tmp_path, 20, run_id="other")
    with pytest.raises(CheckpointError, match="none of the checkpoints can be used"):
        store.choose(tmp_path, store.Lineage(run_id="mine"))


def test_temporary_and_quarantined_directories_are_never_read(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    for name in (f".tmp-{ident(20)}-abc", f".fenced-{ident(20)}-abc", f"{ident(20)}.corrupt", "step-20", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / str(ident(30))).symlink_to(path)
    assert store.published(tmp_path) == [ident(10)]
    assert store.choose(tmp_path / "absent").verdicts == ()


def test_a_taken_quarantine_name_gets_a_number(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    (tmp_path / f"{path.name}.corrupt").mkdir()
    damage_bit(path)
    assert store.choose(tmp_path).verdicts[0].quarantined_as == f"{path.name}.corrupt-1"


def test_a_name_is_never_used_twice(tmp_path: Path) -> None:
    path = save(tmp_path, 10)
    with pytest.raises(CheckpointError, match="exists already"):
        save(tmp_path, 10, fill=b"other")
    assert store.read_verified(path, "a.bin") == bytes([10]) * 100
    assert names(tmp_path) == {path.name, "LATEST"}


def test_a_vanished_directory_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory") as caught:
        save(tmp_path / "gone", 10)
    assert str(tmp_path / "gone") in caught.value.where and caught.value.hint


def test_fencing_takes_the_directories_of_older_writers_only(tmp_path: Path) -> None:
    older = [f".tmp-{ident(1)}-aa", f".tmp-{ident(9, attempt=1)}-bb", f".tmp-{ident(9, attempt=2, restart=0)}-cc"]
    living = [f".tmp-{ident(1, attempt=2, restart=1)}-dd", f".tmp-{ident(1, attempt=3)}-ee", ".tmp-strange", "plain"]
    for name in older + living:
        (tmp_path / name).mkdir()
    fenced = store.fence(tmp_path, attempt=2, restart=1)
    assert set(fenced) == {name.replace(".tmp-", ".fenced-") for name in older}
    assert names(tmp_path) == set(fenced) | set(living)
    assert set(store.sweep(tmp_path)) == set(fenced)
    assert names(tmp_path) == set(living)
    assert store.fence(tmp_path / "absent", attempt=2) == []


def test_pruning_keeps_what_retention_keeps(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    removed = store.prune(tmp_path, newest(1), verified={ident(40)}, resumed_from=ident(20))
    assert set(removed) == {ident(10), ident(30)}
    assert names(tmp_path) == {str(ident(20)), str(ident(40)), "LATEST"}


def test_modes_do_not_open_checkpoints_for_writing(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        path = save(tmp_path, 10)
    finally:
        os.umask(previous)
    assert all(file.stat().st_mode & 0o022 == 0 for file in (path, *path.iterdir()))


def test_metadata_that_is_not_json_publishes_nothing(tmp_path: Path) -> None:
    facts = store.Facts(metadata={"loss": float("nan")})
    with pytest.raises(CheckpointError, match="metadata is not JSON"):
        store.write_buffers(tmp_path, ident(1), {"a": b"1"}, facts)
    assert names(tmp_path) == set()


def test_partial_reads_verify_just_what_they_touch(tmp_path: Path) -> None:
    data = bytes(range(100))
    path = save(tmp_path, 10, fill=data)
    flip(path / "a.bin", 40)
    with store.open_checkpoint(path) as checkpoint:
        reader = checkpoint.reader("a.bin")
        assert reader.read(0, 20) == data[:20]
        assert reader.read(50, 50) == data[50:]
        with pytest.raises(store.DamagedError, match="chunk 2"):
            reader.read(30, 10)
        with pytest.raises(store.DamagedError, match="chunk 2"):
            reader.verify_rest()
        with pytest.raises(store.DamagedError, match="outside"):
            reader.read(90, 11)


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_more_files_than_a_process_may_have_open(tmp_path: Path) -> None:
    buffers = {f"f{number:03d}": bytes([number % 256]) * 40 for number in range(200)}
    store.write_buffers(tmp_path, ident(1), buffers, digesting=SMALL_CHUNKS)
    before = num_open_files()
    with store.open_checkpoint(tmp_path / str(ident(1))) as checkpoint:
        assert all(checkpoint.read(name) == data for name, data in buffers.items())
        assert num_open_files() - before <= 70
        checkpoint.verify_share()
    assert num_open_files() == before
