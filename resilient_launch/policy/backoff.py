"""How long to wait before a failure is tried again."""

from __future__ import annotations


def delay_s(num_failures: int, *, base_s: float, cap_s: float, jitter: float) -> float:
    """Seconds to wait after ``num_failures`` failures in a row without progress; 0 after none.

    Doubles from ``base_s`` up to ``cap_s``. ``jitter``, a random number from 0 to 1, spreads the wait over its upper
    half, so that jobs that one fault ended together do not come back together.
    """
    if num_failures < 1 or base_s <= 0:
        return 0.0
    # The exponent is bounded so that a long history can't overflow a float.
    whole = min(base_s * 2.0 ** min(num_failures - 1, 60), cap_s)
    return whole * (0.5 + 0.5 * min(max(jitter, 0.0), 1.0))
