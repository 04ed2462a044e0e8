"""Names for user and group numbers. Each is read from the system's files once: a long queue has a row for every job."""

from __future__ import annotations

import grp
import pwd
from functools import cache


@cache
def user_name(uid: int) -> str:
    """The user's name; the number itself where there is none, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@cache
def group_name(gid: int) -> str:
    """The group's name, or the number itself."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
