"""A board over one of torch's key-value stores, such as the TCPStore that the node agents keep."""

from __future__ import annotations

import time

from torch.distributed.distributed_c10d import PrefixStore, Store

_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05


class StoreBoard:
    """Posts under ``prefix`` of ``store``."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = PrefixStore(prefix, store)

    def post(self, key: str, value: bytes) -> None:
        try:
            self._store.set(key, value.decode())
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def read(self, key: str, timeout_s: float) -> bytes:
        began = time.monotonic()
        try:
            # Asking again and again instead of Store.wait: that one logs every time-out as a network trouble, and keeps
            # every other caller of this client waiting.
            while not self._store.check([key]):
                waited_s = time.monotonic() - began
                if waited_s >= timeout_s:
                    raise TimeoutError(key)
                # A wait gets longer by a tenth at most: a save's length is made of such waits.
                pause_s = min(max(waited_s / 10, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
                time.sleep(min(pause_s, timeout_s - waited_s))
            return self._store.get(key)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error

    def discard(self, key: str) -> None:
        try:
            self._store.delete_key(key)
        except RuntimeError as error:
            raise ConnectionError(str(error)) from error
