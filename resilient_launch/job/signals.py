"""TERM, USR1 and USR2: blocked before Python starts, and read here by one thread, so that no work runs in a handler."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

NOTICE_SIGNALS = frozenset({signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})


def block() -> None:
    """Block the notice signals in this thread and all it starts later. Blocked, not ignored: an early one is kept."""
    signal.pthread_sigmask(signal.SIG_BLOCK, NOTICE_SIGNALS)


class SignalReader(threading.Thread):
    """Hands the name of every notice signal that reaches this process to ``on_signal``, in this thread."""

    def __init__(self, on_signal: Callable[[str], None]) -> None:
        super().__init__(name="rlaunch-signals", daemon=True)
        self._on_signal = on_signal

    def run(self) -> None:
        while True:
            info = signal.sigwaitinfo(NOTICE_SIGNALS)
            self._on_signal(signal.Signals(info.si_signo).name)


def shield() -> None:
    """In a worker: make the notice signals, which its node agent acts on, harmless to this process and its threads.

    The mask comes with the process, unless a shell between agent and worker cleared it, as dash does for what it forks;
    then threads of libraries that are loaded already would die of a signal that is merely blocked in this one.
    """
    block()
    for number in NOTICE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def leave_with_parent(parent: int) -> None:
    """In a forked data-loading process: exit on a TERM that the parent itself sent, and on no other.

    Slurm may signal every process of a step; a data loader that died of it would take its trainer down before the save.
    The parent's own TERM, which ends data loaders at the end of a script, must still work.
    """

    def wait() -> None:
        while True:
            info = signal.sigwaitinfo({signal.SIGTERM})
            if info.si_pid == parent:
                os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait, name="rlaunch-term", daemon=True).start()


def guard_forked_children() -> None:
    """Make every process forked from this one obey its TERM although the signal stays blocked."""
    os.register_at_fork(after_in_child=lambda: leave_with_parent(os.getppid()))
