"""Checks against real directories, a real store and real programs; what is wrong must be named."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import HashStore, Store, TCPStore

from resilient_launch.config.schema import HealthConfig, LaunchConfig
from resilient_launch.job import agreement, health


def test_all_checks_run_at_once_and_one_that_hangs_is_a_problem(tmp_path: Path) -> None:
    never = threading.Event()
    barrier = threading.Barrier(2, timeout=30)

    def meet() -> None:
        barrier.wait()

    def fail() -> str | None:
        raise OSError(28, "No space left on device")

    checks: dict[str, health.Check] = {
        "first": meet,  # type: ignore[dict-item]
        "second": meet,  # type: ignore[dict-item]
        "bad": lambda: "it is bad",
        "worse": fail,
        "dead": lambda: str(never.wait()),
    }
    found = health.problems(checks, timeout_s=5.0)
    assert sorted(found) == ["dead: no answer within 5 s", "it is bad", "worse: [Errno 28] No space left on device"]
    never.set()


def test_space(tmp_path: Path) -> None:
    assert health.free_space(tmp_path, 1) is None
    assert "MiB free, 9999999999 are needed" in str(health.free_space(tmp_path, 9_999_999_999))
    assert "does not exist" in str(health.free_space(tmp_path / "none", 1))


def test_writing(tmp_path: Path) -> None:
    assert health.write_and_rename(tmp_path, "1-0-0") is None
    assert not list(tmp_path.iterdir())
    (tmp_path / ".health-1-0-0.tmp").write_text("left by an attempt that was killed")
    assert health.write_and_rename(tmp_path, "1-0-0") is None
    with pytest.raises(OSError, match="No such file"):
        health.write_and_rename(tmp_path / "gone", "1-0-0")


def test_memory() -> None:
    meminfo = "MemTotal: 8000000 kB\nMemAvailable:    4096000 kB\n"
    assert health.memory(4000, meminfo) is None
    assert health.memory(5000, meminfo) is None, "the kernel's own share"
    assert health.memory(6000, meminfo) == "memory: 4000 MiB are free, 6000 were promised"
    assert health.memory(6000, "MemTotal: 1 kB\n") is None


def test_gpus(tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path)}
    assert health.gpus(2, {**nowhere, "CUDA_VISIBLE_DEVICES": "0,1"}) is None
    assert "names 1, 2 were promised" in str(health.gpus(2, {**nowhere, "CUDA_VISIBLE_DEVICES": "3"}))
    assert "names 0, 2 were promised" in str(health.gpus(2, {**nowhere, "CUDA_VISIBLE_DEVICES": "NoDevFiles"}))
    assert health.gpus(2, nowhere) is None, "no driver, no word"
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA X (UUID: a)'\necho 'GPU 1: NVIDIA X (UUID: b)'\n")
    tool.chmod(0o755)
    assert health.gpus(2, nowhere) is None
    assert health.gpus(3, nowhere) == "GPUs: nvidia-smi lists 2, 3 were promised"
    tool.write_text("#!/bin/sh\necho 'Unable to determine the device handle: GPU is lost' >&2\nexit 15\n")
    assert "lists 0, 2 were promised (Unable to determine the device handle: GPU is lost)" in str(
        health.gpus(2, nowhere)
    )


def test_clocks_of_many_nodes() -> None:
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def connect() -> TCPStore:
        return TCPStore("localhost", server.port, is_master=False, wait_for_workers=False)

    answering = threading.Thread(target=health.answer_clocks, args=(connect(), 4), daemon=True)
    answering.start()
    found: list[str | None] = []
    asking = [threading.Thread(target=lambda: found.append(health.clock(connect(), 5.0))) for _ in range(3)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(30)
    answering.join(30)
    assert found == [None] * 3 and not answering.is_alive()


def test_a_clock_that_is_off_is_named() -> None:
    server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("localhost", server.port, is_master=False, wait_for_workers=False)

    def answer_an_hour_late() -> None:
        for number in (1, 2, 3):
            server.wait([f"clock/ask/{number}"], timedelta(seconds=30))
            agreement.post(server, f"clock/answer/{number}", {"now": time.time() - 3600})

    thread = threading.Thread(target=answer_an_hour_late)
    thread.start()
    found = health.clock(client, 5.0)
    thread.join()
    assert found is not None and found.startswith("clock: +3600.") and found.endswith("5 s are allowed")


def test_what_is_asked_of_a_node(tmp_path: Path) -> None:
    def names(*, is_first: bool, cluster: str) -> set[str]:
        config = LaunchConfig(
            name="x",
            workdir=tmp_path,
            python="python",
            gpus_per_node=1,
            memory_mb=1000,
            cluster=cluster,  # type: ignore[arg-type]
            health=HealthConfig(),
        )
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        return set(health.checks_of(config, tmp_path, who="1", store=store, is_first=is_first))

    common = {"/dev/shm", "temporary directory", "run directory"}
    assert names(is_first=True, cluster="fake") == common
    assert names(is_first=False, cluster="slurm") == common | {"clock", "GPUs", "memory"}


def test_nodes_that_reach_each_other_and_one_that_does_not_answer() -> None:
    def check(node_index: int, store: Store, timeout_s: float) -> str:
        return health.links(
            store, node_index=node_index, num_nodes=2, first_address="127.0.0.1", timeout_s=timeout_s, patience_s=60.0
        )

    with ThreadPoolExecutor(2) as pool:
        store = HashStore()
        assert list(pool.map(lambda index: check(index, store, 30.0), range(2))) == ["", ""]
    alone = HashStore()
    alone.add("links/arrived", 1)
    alone.set("links/first", "127.0.0.1")
    assert "the network between the nodes" in check(0, alone, 0.2)
    # Who never came is missed elsewhere.
    assert health.links(HashStore(), node_index=0, num_nodes=2, first_address="127.0.0.1", patience_s=0.05) == ""
