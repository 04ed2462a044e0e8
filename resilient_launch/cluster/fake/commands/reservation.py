"""scontrol's words about reservations: create, show, delete."""

from __future__ import annotations

from collections.abc import Mapping

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake import timefmt
from resilient_launch.cluster.fake.commands import CommandError, Context, Reply
from resilient_launch.cluster.fake.render import block
from resilient_launch.cluster.fake.reservations import Reservation
from resilient_launch.core.errors import UsageError

_FAILED = "Error creating the reservation: "
_INVALID = "Requested reservation is invalid"


def create(context: Context, values: Mapping[str, str], user: str) -> Reply:
    """``scontrol create reservation``. Raises CommandError."""
    life = context.life
    name = values.get("reservationname") or values.get("reservation") or life.reservations.free_name(user)
    if life.reservations.get(name) is not None:
        raise CommandError(f"{_FAILED}Duplicate reservation name\n")
    if not (values.get("users") or values.get("user") or values.get("accounts")):
        raise CommandError(f"{_FAILED}{_INVALID}\n")
    try:
        start = timefmt.parse_moment(values.get("starttime", "now"), context.now)
        end = _end(values, start)
    except ValueError:
        raise CommandError(f"{_FAILED}Time specification is invalid\n") from None
    if end <= max(start, context.now):
        raise CommandError(f"{_FAILED}Time specification is invalid\n")
    text = values.get("nodes", "")
    try:
        names = tuple(life.nodes) if text.upper() == "ALL" else hostlist.expand(text)
    except UsageError:
        names = ()
    if not names or not set(names) <= life.nodes.keys():
        raise CommandError(f"{_FAILED}Invalid node name specified\n")
    flags = [word for word in values.get("flags", "").upper().split(",") if word]
    flags.append("ALL_NODES" if text.upper() == "ALL" else "SPEC_NODES")
    users = values.get("users") or values.get("user", "")
    reserve(context, Reservation(name=name, start=start, end=end, nodes=names, flags=tuple(flags), users=users))
    return Reply(out=f"Reservation created: {name}\n")


def reserve(context: Context, reservation: Reservation) -> None:
    """Take the nodes away from every job that has not started."""
    context.life.reservations.add(reservation)
    context.life.must_schedule = True


def delete(context: Context, name: str) -> Reply:
    """``scontrol delete``. Raises CommandError for a name that there is not."""
    if context.life.reservations.get(name) is None:
        raise CommandError(f"delete_reservation reservationname={name}: {_INVALID}\n")
    context.life.reservations.remove(name)
    context.life.must_schedule = True
    return Reply()


def show(context: Context, name: str, *, oneliner: bool) -> Reply:
    """``scontrol show reservation``."""
    found = [each for each in context.life.reservations if not name or each.name == name]
    if not found and name:
        return Reply(out=f"Reservation {name} not found\n", code=1)
    if not found:
        return Reply(out="No reservations in the system\n")
    return Reply(out="".join(block(_record(context, each), oneliner=oneliner) for each in found))


def _end(values: Mapping[str, str], start: float) -> float:
    if "endtime" in values:
        return timefmt.parse_moment(values["endtime"], start)
    limit_s = timefmt.parse_limit_s(values.get("duration", ""))
    return start + (limit_s if limit_s is not None else 365 * 86400)


def _record(context: Context, each: Reservation) -> list[str]:
    spec = context.life.spec
    cores = spec.cpus * len(each.nodes)
    state = "ACTIVE" if each.is_active(context.now) else "INACTIVE"
    watts = " Watts=n/a" if spec.like == "22.05" else ""
    return [
        f"ReservationName={each.name} StartTime={timefmt.moment(each.start)} EndTime={timefmt.moment(each.end)} "
        f"Duration={timefmt.duration(each.end - each.start)}",
        f"Nodes={hostlist.compress(each.nodes)} NodeCnt={len(each.nodes)} CoreCnt={cores} Features=(null) "
        f"PartitionName=(null) Flags={','.join(each.flags)}",
        f"TRES=cpu={cores}",
        f"Users={each.users} Groups=(null) Accounts=(null) Licenses=(null) State={state} BurstBuffer=(null){watts}",
        "MaxStartDelay=(null)",
    ]
