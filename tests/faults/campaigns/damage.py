"""A finished checkpoint is damaged in every way that storage knows: it is put aside, and the older one loaded."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults.campaigns.operations import ident
from tests.faults.campaigns.states import INDEX, Shape, must_load, save
from tests.faults.campaigns.strikes import memory
from tests.faults.campaigns.tally import Tally, hold

SHAPE = Shape(ranks=2, num_bytes=5000, chunk_bytes=1 << 11)
OLD, NEW = ident(10), ident(20)


def damage(tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="rlaunch-campaign-", dir=memory()) as scratch:
        template, place = Path(scratch) / "template", Path(scratch) / "place"
        template.mkdir()
        save(template, OLD, SHAPE)
        save(template, NEW, SHAPE)
        for name in ["rank0-0.bin", "rank1-0.bin", INDEX, "MANIFEST.json"]:
            for what, harm in _harms(random.Random(f"{tally.seed}/{name}"), 120 if tally.is_long else 6):
                if not tally.wants(f"{name}/{what}"):
                    continue
                with tally.case("damage", f"{name}/{what}"):
                    shutil.copytree(template, place)
                    try:
                        harm(place / str(NEW) / name)
                        must_load(place, [OLD], SHAPE, may_condemn=True)
                        hold((place / f"{NEW}.corrupt").is_dir(), "what is damaged was not put aside")
                    finally:
                        shutil.rmtree(place)
                    tally.counts["damages"] += 1


def _harms(rng: random.Random, num_bits: int) -> Iterator[tuple[str, Callable[[Path], object]]]:
    def bit(where: float, mask: int) -> Callable[[Path], object]:
        def flip(path: Path) -> None:
            data = bytearray(path.read_bytes())
            data[int(where * len(data))] ^= mask
            path.write_bytes(data)

        return flip

    def cut(share: float) -> Callable[[Path], object]:
        def truncate(path: Path) -> None:
            path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

        return truncate

    for number in range(num_bits):
        yield f"bit-{number}", bit(rng.random(), 1 << rng.randrange(8))
    for share in (0.0, rng.random(), 0.999):
        yield f"cut-{share:.3f}", cut(share)
    yield "longer", lambda path: path.write_bytes(path.read_bytes() + b"\0")
    yield "zeros", lambda path: path.write_bytes(bytes(path.stat().st_size))
    yield "missing", lambda path: path.unlink()
    yield "older", lambda path: shutil.copyfile(_older(path), path)
    yield "directory", _becomes_directory
    yield "link", _becomes_link


def _older(path: Path) -> Path:
    return path.parents[1] / str(OLD) / path.name


def _becomes_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _becomes_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(_older(path))
