"""sinfo: partitions and the states of their nodes."""

from __future__ import annotations

from resilient_launch.cluster import hostlist
from resilient_launch.cluster.fake.commands import Call, Context, Reply, expand_nodes, layout, read_arguments
from resilient_launch.cluster.fake.options import table
from resilient_launch.cluster.fake.render import node_state

OPTIONS = table(
    "all:a clusters:M= dead:d exact:e federation Format:O= format:o= future:F help hide iterate:i= json "
    "list-reasons:R local long:l noconvert Node:N nodes:n= noheader:h partition:p= reservation:T responding:r "
    "sort:S= states:t= summarize:s usage verbose:v version:V yaml"
)
_DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
_BY_NODE = "%N %.6D %9P %.6t"
_TITLES = {
    "P": "PARTITION", "R": "PARTITION", "a": "AVAIL", "l": "TIMELIMIT", "D": "NODES", "t": "STATE", "T": "STATE",
    "N": "NODELIST", "n": "HOSTNAMES", "c": "CPUS", "m": "MEMORY", "G": "GRES", "C": "CPUS(A/I/O/T)", "E": "REASON",
    "p": "PRIO_TIER", "M": "PREEMPT_MODE",
}  # fmt: skip
_SHORT = {
    "IDLE": "idle",
    "MIXED": "mix",
    "ALLOCATED": "alloc",
    "MAINT": "maint",
    "DOWN": "down",
    "DRAINED": "drain",
    "DRAINING": "drng",
}


def run(context: Context, call: Call) -> Reply:
    """One line per partition and node state, or with ``-N`` per node."""
    given = read_arguments("sinfo", call.arguments, OPTIONS)
    life = context.life
    by_node = "Node" in given
    text = given.get("format") or (_BY_NODE if by_node else _DEFAULT)
    wanted = set(expand_nodes("sinfo", given.get("nodes"))) if "nodes" in given else life.nodes.keys()
    shown = [node for node in life.nodes.values() if node.name in wanted]
    one_each = by_node or "%n" in text
    lines = [] if "noheader" in given else [layout(text, _TITLES)]
    for number, partition in enumerate(life.spec.partitions):
        if "partition" in given and partition.name not in given.get("partition").split(","):
            continue
        groups: dict[str, list[str]] = {}
        for node in shown:
            state = node_state(life, node, context.now)
            groups.setdefault(f"{state}/{node.name}" if one_each else state, []).append(node.name)
        for key, names in groups.items():
            state = key.split("/")[0]
            base = state.rstrip("*")
            used = sum(job.cpus.get(name, 0) for job in life.jobs.values() if job.nodes for name in names)
            total = life.spec.cpus * len(names)
            values = {
                "P": partition.name + ("*" if number == 0 else ""), "R": partition.name, "a": "up", "l": "infinite",
                "D": str(len(names)), "t": _SHORT[base] + ("*" if state.endswith("*") else ""), "T": state.lower(),
                "N": hostlist.compress(names), "n": names[0], "c": str(life.spec.cpus), "m": str(life.spec.memory_mb),
                "G": f"gpu:{life.spec.gpus}" if life.spec.gpus else "(null)", "C": f"{used}/{total - used}/0/{total}",
                "E": life.nodes[names[0]].reason or "none", "p": str(partition.tier),
                "M": partition.preempt_mode.upper(),
            }  # fmt: skip
            lines.append(layout(text, values))
    return Reply(out="".join(f"{line}\n" for line in lines))
