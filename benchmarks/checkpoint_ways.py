"""One rank of the checkpoint benchmark: every way of saving and loading one state, in turns."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import re
import shutil
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

from resilient_launch.checkpoint.background.arena import Arena
from resilient_launch.checkpoint.background.saving import Background
from resilient_launch.checkpoint.background.staging import Stager
from resilient_launch.checkpoint.checkpointer import Checkpointer
from resilient_launch.checkpoint.dcp import read_tensors
from resilient_launch.checkpoint.index import INDEX_NAME, Index
from resilient_launch.checkpoint.layout import shard_name
from resilient_launch.checkpoint.store import open_checkpoint
from resilient_launch.checkpoint.torch_board import StoreBoard
from resilient_launch.checkpoint.train_state import TrainState
from resilient_launch.checkpoint.tree import tensor_bytes

DCP_MODES = ("process", "thread")
WRITE_BYTES = 8 << 20
WAIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """``num_layers`` square layers of ``width`` with AdamW, replicated on ``world_size`` ranks."""

    name: str
    width: int
    num_layers: int
    world_size: int


class Workbench:
    """A rank's state and everything that it is saved with."""

    def __init__(self, case: Case, rank: int, port: int, directory: Path) -> None:
        # Each rank has a core of its own, as far as there are any; the copies of the peers run best so, too.
        torch.set_num_threads(1)
        logging.disable(logging.WARNING)
        self.rank, self.world_size, self.directory = rank, case.world_size, directory
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=dist.PrefixStore("g", store), rank=rank, world_size=case.world_size)
        torch.manual_seed(0)
        layers = [torch.nn.Linear(case.width, case.width) for _ in range(case.num_layers)]
        self.model = torch.nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()
        optimizer.zero_grad()
        self.state = TrainState(model=self.model, optimizer=optimizer)
        board = StoreBoard(store, "checkpoints")
        self.background = Background(board, rank=rank, world_size=case.world_size, num_sharing=case.world_size)
        self.saver = Checkpointer(
            directory / "ours",
            rank=rank,
            world_size=case.world_size,
            board=board,
            background=self.background,
            keep=1,
        )
        self.saver.warm_up(self.state)
        self.saver.settle()
        self.capture = self.state.capture(rank, case.world_size)
        self.layout = Stager(rank, case.world_size).layout(self.capture)
        self.arena = Arena.create(self.layout.num_bytes)
        self.stagers = {
            mode: DefaultStager(
                StagingOptions(
                    use_pinned_memory=False,
                    use_shared_memory=mode == "process",
                    use_async_staging=False,
                    use_non_blocking_copy=False,
                )
            )
            for mode in DCP_MODES
        }
        self.inputs = torch.randn(64, 256)
        self.weights = torch.randn(256, 256)
        self.taken: dict[str, list[float]] = defaultdict(list)

    def take(self, name: str, value: float) -> None:
        self.taken[name].append(value)

    def timed(self, name: str, act: Callable[[], object]) -> float:
        """Take the seconds that ``act`` needs; all ranks begin together."""
        dist.barrier()
        began = time.perf_counter()
        act()
        elapsed_s = time.perf_counter() - began
        self.take(name, elapsed_s)
        return elapsed_s

    def step(self) -> None:
        """Some milliseconds of computing, as a training step that touches no other rank."""
        for _ in range(20):
            torch.tanh(self.inputs @ self.weights)

    # The limits.

    def memmove(self) -> None:
        for place in self.layout.places:
            source = self.capture.tensors[place.key]
            ctypes.memmove(self.arena.address + place.offset, source.data_ptr(), place.num_bytes)

    def raw_write(self) -> None:
        path = self.directory / f"raw-{self.rank}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
        length = -(-self.layout.num_bytes // 4096) * 4096
        for start in range(0, length, WRITE_BYTES):
            os.pwrite(fd, self.arena.view[start : min(start + WRITE_BYTES, length)], start)
        os.fsync(fd)
        os.close(fd)

    # Ours, and the peers.

    def ours(self) -> None:
        self.state.step += 1
        saving = self.saver.begin_save(self.state)
        report = saving.wait(WAIT_S)
        self.take("ours blocking", report.staged_s)
        self.take("ours durable", report.durable_s)
        self.saver.settle()

    def dcp(self, mode: str) -> None:
        target = self.directory / f"dcp-{mode}"
        kind = AsyncCheckpointerType.PROCESS if mode == "process" else AsyncCheckpointerType.THREAD
        dist.barrier()
        began = time.perf_counter()
        future: Any = async_save(
            dict(self.capture.tensors),
            storage_writer=FileSystemWriter(target, thread_count=2),
            async_checkpointer_type=kind,
            async_stager=self.stagers[mode],
        )
        self.take(f"dcp {mode} blocking", time.perf_counter() - began)
        future.result()
        self.take(f"dcp {mode} durable", time.perf_counter() - began)

    def torch_save(self) -> None:
        """What this rank writes of the state, in torch's own file."""
        path = self.directory / f"torch-{self.rank}"
        with path.open("wb") as file:
            torch.save({place.key: self.capture.tensors[place.key] for place in self.layout.places}, file)
            file.flush()
            os.fsync(file.fileno())

    def clean(self) -> None:
        dist.barrier()
        if self.rank == 0:
            for path in self.directory.iterdir():
                if path.name != "ours":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        dist.barrier()

    # Training beside it.

    def steps_beside(self) -> None:
        """Steps a second, first alone and then for as long as a save takes."""
        for name, is_writing in (("steps", False), ("steps writing", True)):
            dist.barrier()
            self.state.step += 1
            saving = self.saver.begin_save(self.state) if is_writing else None
            began, count = time.perf_counter(), 0
            while count < 20 or (saving is not None and not saving.is_over):
                self.step()
                count += 1
            self.take(name, count / (time.perf_counter() - began))
            self.saver.settle()

    def notice(self, raw_s: float) -> None:
        """A notice that comes as a step begins: the step, and a save until it is durable."""
        dist.barrier()
        began = time.perf_counter()
        self.step()
        self.take("step + raw", time.perf_counter() - began + raw_s)
        self.state.step += 1
        self.saver.begin_save(self.state).wait(WAIT_S)
        self.take("notice", time.perf_counter() - began)
        self.saver.settle()

    # Loading.

    def load(self) -> None:
        assert self.saver.last_saved is not None
        path = self.directory / "ours" / str(self.saver.last_saved)
        into = {place.key: torch.zeros_like(self.capture.tensors[place.key]) for place in self.layout.places}
        views = {key: tensor_bytes(tensor) for key, tensor in into.items()}

        def read() -> None:
            fd = os.open(path / shard_name(self.rank), os.O_RDONLY)
            for place in self.layout.places:
                view, position = views[place.key], place.offset
                while view:
                    count = os.preadv(fd, [view], position)
                    view, position = view[count:], position + count
            os.close(fd)

        def verified() -> None:
            with open_checkpoint(path) as opened:
                read_tensors(opened, Index.parse(opened.read(INDEX_NAME)), into)

        for name, act in (("read", read), ("load", verified)):
            self.forget(path)
            self.timed(f"{name} cold", act)
        read()
        for name, act in (("read", read), ("load", verified)):
            self.timed(f"{name} warm", act)

    def forget(self, path: Path) -> None:
        """Out of the page cache with it; it is durable."""
        for file in path.iterdir():
            fd = os.open(file, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def memory(self, num_saves: int) -> None:
        """Memory of this process and its writer, shared pages counted once."""
        for number in range(num_saves):
            self.state.step += 1
            self.saver.begin_save(self.state).wait(WAIT_S)
            self.saver.settle()
            if number == 4:
                self.take("memory early", self.used_bytes())
        self.take("memory", self.used_bytes())

    def used_bytes(self) -> float:
        pids = [os.getpid(), self.background.writer_pid]
        texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
        return sum(float(match[1]) * 1024 for text in texts if (match := re.search(r"^Pss: +(\d+)", text, re.M)))


def serve_case(
    case: Case, rank: int, port: int, directory: Path, repetitions: int, memory_saves: int, pipe: Connection
) -> None:
    """Measure, and send what was taken, or the error's text; then end at once."""
    # torch's checkpoint process chats on stderr, and complains when it is not waited for.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        pipe.send(measure_case(case, rank, port, directory, repetitions, memory_saves))
    except Exception:
        pipe.send(traceback.format_exc())
    os._exit(0)


def measure_case(
    case: Case, rank: int, port: int, directory: Path, repetitions: int, memory_saves: int
) -> dict[str, list[float]]:
    """Every way in turns, after one round that warms all of them up; name of the figure -> one value a repetition."""
    bench = Workbench(case, rank, port, directory)
    turns: list[Callable[[], object]] = [
        lambda: bench.timed("memmove", bench.memmove),
        bench.ours,
        lambda: bench.timed("raw", bench.raw_write),
        lambda: bench.timed("torch.save", bench.torch_save),
        *(lambda mode=mode: bench.dcp(mode) for mode in DCP_MODES),
        bench.steps_beside,
        bench.load,
    ]
    for number in range(repetitions + 1):
        if number == 1:
            bench.taken.clear()
        # Alike on every rank, and another order each time: nobody always follows the same neighbour.
        random.Random(number).shuffle(turns)
        for turn in turns:
            turn()
            bench.clean()
        bench.notice(bench.taken["raw"][-1])
    bench.memory(memory_saves)
    bench.saver.close(WAIT_S)
    dist.barrier()
    return dict(bench.taken)
