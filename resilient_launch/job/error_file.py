"""What a worker leaves for the report when it fails."""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from pathlib import Path


def write_error_file(error: BaseException) -> None:
    """Leave the traceback where the elastic agent's format says, for the report of the first rank that failed."""
    target = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not target:
        return
    text = "".join(traceback.format_exception(error))
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))},
    }
    # Whole or not at all: the agent may be ending this process.
    temporary = Path(f"{target}.{os.getpid()}")
    with contextlib.suppress(OSError):
        temporary.write_text(json.dumps({"message": message}))
        temporary.rename(target)
