"""What a node must show before the first step: devices, memory, space, a run directory that works, a true clock."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resilient_launch.config.schema import LaunchConfig
from resilient_launch.core import durable
from resilient_launch.job import agreement
from resilient_launch.job.agreement import KeyValueStore
from resilient_launch.job.context import own_address_towards

if TYPE_CHECKING:
    from torch.distributed import Store

TIMEOUT_S = 8.0
MIN_MEMORY_SHARE = 0.8
"""The share of the promised memory that must be free. The rest may be the kernel's, the agent's and rounding."""
ARRIVAL_PATIENCE_S = 600.0
_ARRIVAL_POLL_S = 0.02
_MIB = 1024 * 1024
_NUM_PINGS = 3
Check = Callable[[], str | None]
"""Says what is wrong, None when nothing is. May raise OSError, which is wrong too."""


def problems(checks: Mapping[str, Check], *, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Run all checks at once; what is wrong, one line each. A check that does not come to an end is a problem too."""
    found: dict[str, str | None] = {}

    def run(name: str, check: Check) -> None:
        try:
            found[name] = check()
        except (OSError, ConnectionError, RuntimeError) as error:
            found[name] = f"{name}: {error}"

    # Daemons: a thread that hangs in a dead file server must not hold this process.
    threads = [threading.Thread(target=run, args=each, daemon=True) for each in checks.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0.0))
    answers = dict(found)
    late = [f"{name}: no answer within {timeout_s:.0f} s" for name in checks if name not in answers]
    return [answer for answer in answers.values() if answer] + late


def checks_of(
    config: LaunchConfig, run_dir: Path, *, who: str, store: KeyValueStore, is_first: bool
) -> dict[str, Check]:
    """The checks for one node. ``who`` names it in files, so that no two nodes use one name; ``store`` is its own
    connection. The fake cluster's devices and memory are made up, and are not looked for."""
    health = config.health
    checks: dict[str, Check] = {
        "/dev/shm": lambda: free_space(Path("/dev/shm"), health.min_shm_mb),
        "temporary directory": lambda: free_space(Path(tempfile.gettempdir()), health.min_tmp_mb),
        "run directory": lambda: write_and_rename(run_dir, who),
    }
    if not is_first:
        checks["clock"] = lambda: clock(store, health.max_clock_skew_s)
    if config.cluster != "fake":
        if config.gpus_per_node:
            checks["GPUs"] = lambda: gpus(config.gpus_per_node, os.environ)
        if config.memory_mb:
            memory_mb = config.memory_mb
            checks["memory"] = lambda: memory(memory_mb, Path("/proc/meminfo").read_text())
    return checks


def free_space(directory: Path, min_mb: int) -> str | None:
    """Whether ``min_mb`` MiB are free."""
    if not directory.is_dir():
        return f"{directory} does not exist"
    free_mb = shutil.disk_usage(directory).free // _MIB
    return f"{directory} has {free_mb} MiB free, {min_mb} are needed" if free_mb < min_mb else None


def write_and_rename(directory: Path, who: str) -> str | None:
    """Whether a file can be written, flushed to storage, renamed, and read under its new name."""
    before, after = directory / f".health-{who}.tmp", directory / f".health-{who}"
    word = os.urandom(16)
    try:
        before.unlink(missing_ok=True)
        durable.write_file(before, word)
        before.rename(after)
        return None if after.read_bytes() == word else f"{after} does not hold what was written to it"
    finally:
        for path in (before, after):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def memory(promised_mb: int, meminfo: str) -> str | None:
    """Whether what was promised is free, from the text of /proc/meminfo."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if match is None:
        return None
    free_mb = int(match[1]) // 1024
    if free_mb >= MIN_MEMORY_SHARE * promised_mb:
        return None
    return f"memory: {free_mb} MiB are free, {promised_mb} were promised"


def gpus(promised: int, env: Mapping[str, str]) -> str | None:
    """Whether the promised number of GPUs is visible: to CUDA's environment, and to the driver where there is one."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        named = [word for word in visible.split(",") if word.strip() and word.strip() not in ("-1", "NoDevFiles")]
        if len(named) < promised:
            return f"GPUs: CUDA_VISIBLE_DEVICES={visible!r} names {len(named)}, {promised} were promised"
    tool = shutil.which("nvidia-smi", path=env.get("PATH"))
    if tool is None:
        return None
    done = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    listed = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    if done.returncode == 0 and listed >= promised:
        return None
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"GPUs: nvidia-smi lists {listed}, {promised} were promised" + (f" ({said[-1]})" if done.returncode else "")


def links(
    store: Store,
    *,
    node_index: int,
    num_nodes: int,
    first_address: str,
    timeout_s: float = TIMEOUT_S,
    patience_s: float = ARRIVAL_PATIENCE_S,
) -> str:
    """Whether all nodes reach each other: a small all-reduce over gloo.

    It goes by the addresses that lead to the first node, which the others know as ``first_address``; a host's own name
    may lead to its loopback. Waits until every node has come, for ``patience_s`` at most (one that never comes is the
    rendezvous' to tell), and gives the all-reduce ``timeout_s``. Returns what is wrong, empty when nothing is.
    """
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo

    deadline = time.monotonic() + patience_s
    if node_index == 1:
        store.set("links/first", socket.gethostbyname(first_address))
    store.add("links/arrived", 1)
    while store.add("links/arrived", 0) < num_nodes:
        if time.monotonic() > deadline:
            return ""
        time.sleep(_ARRIVAL_POLL_S)
    address = own_address_towards(first_address) if node_index else store.get("links/first").decode()
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    total = torch.ones(1)
    try:
        group = gloo(PrefixStore("links", store), node_index, num_nodes, options)
        group.allreduce([total]).wait()
    except (RuntimeError, OSError) as error:
        return f"the network between the nodes: {str(error).splitlines()[0]}"
    if total.item() != num_nodes:
        return f"the network between the nodes: an all-reduce of ones gave {total.item():g}, not {num_nodes}"
    return ""


def answer_clocks(store: KeyValueStore, num_nodes: int) -> None:
    """On the first node, in a thread of its own: tell every other node this clock, until all have asked."""
    with contextlib.suppress(ConnectionError):
        for number in range(1, _NUM_PINGS * (num_nodes - 1) + 1):
            ping = agreement.wait(store, f"clock/ask/{number}")
            agreement.post(store, f"clock/answer/{ping['id']}", {"now": time.time()})


def clock(store: KeyValueStore, max_skew_s: float) -> str | None:
    """Whether this node's clock agrees with the first node's, by the round trip that took the shortest time.

    The error of one reading is half its round trip (Cristian's algorithm), which is given the benefit of the doubt.
    """
    skews = []
    for _ in range(_NUM_PINGS):
        number = store.add("clock/asked", 1)
        before, began = time.time(), time.monotonic()
        store.set(f"clock/ask/{number}", json.dumps({"id": number}))
        answer = agreement.wait(store, f"clock/answer/{number}")
        half_s = (time.monotonic() - began) / 2
        skews.append((half_s, before + half_s - float(answer["now"])))
    error_s, skew_s = min(skews)
    if abs(skew_s) - error_s <= max_skew_s:
        return None
    return f"clock: {skew_s:+.1f} s from the first node's, {max_skew_s:.0f} s are allowed"
