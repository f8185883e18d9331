"""Page of the topology: hosts, process groups and links, with the slow ones marked."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.core.links import GroupTimes, group_times
from tracekit.core.topology import Group
from tracekit.report import format
from tracekit.report.blocks import (
    Answer,
    Block,
    Folded,
    Heatmap,
    Key,
    Role,
    Table,
    TableColumn,
    Text,
)
from tracekit.report.page import RunPage
from tracekit.report.section import Section, plural

from ._parts import MANY_RANKS
from ._waits import timed

SLOW = 1.2  # a group is marked when its transfers take this much longer than its peers'
SHOWN_AXES = 12
MEMBERS = 8  # ranks of a group that are listed
METHOD = (
    "Groups of one mesh axis do the same work, so the same operation of the same size should "
    "take them equally long. Slower than peers: over the group's operations, the median of its "
    "median transfer over that of the other groups. Waiting for a late rank is not part of a "
    "transfer. A group is marked from 1.2 times its peers on, where the 95 % intervals of the "
    "medians lie apart; few transfers have wide ones.\n\n"
    "Transfers need clocks that are connected and every rank of the group; where they are not, "
    "a group is listed without times."
)


def build(section: Section) -> Sequence[Block]:
    """Which group is slow, where, the groups as a table, hosts and links."""
    run = section.run
    matching, known = timed(run)
    found = group_times(matching, known)
    blocks: list[Block] = [_answer(section, found)]
    picture = _picture(section, found)
    if picture is not None:
        blocks.append(picture)
    if found:
        blocks.append(_groups(section, found))
    elif run.topology.groups:
        blocks.append(_silent_groups(section))
    blocks += _hosts(section)
    blocks += _links(section)
    return (*blocks, Folded("Method and limits", (Text(METHOD),)))


def _answer(section: Section, found: Sequence[GroupTimes]) -> Answer:
    hosts = len(set(section.hosts.values()))
    axes = {axis: size for axis, size in section.run.topology.axes.items() if size > 1}
    mesh = " × ".join(f"{axis} {size}" for axis, size in axes.items())
    where = f" on {plural(hosts, 'host')}" if hosts else ""
    groups = [item for item in found if len(item.group.ranks) > 1]
    sentence = f"{plural(len(section.run.traces), 'rank')}{where}" + (f", {mesh}" if mesh else "")
    slow = sorted((g for g in groups if _is_slow(g)), key=lambda g: -(g.slowdown or 0.0))
    judged = [item for item in groups if item.slowdown is not None]
    if slow:
        worst = slow[0]
        more = f", the slowest of {len(slow)}" if len(slow) > 1 else ""
        sentence += (
            f"; transfers of {_name(section, worst.group)} take "
            f"{format.significant(worst.slowdown or 0.0)} times as long as those of its peers{more}"
        )
    elif judged:
        sentence += f"; none of {plural(len(judged), 'group')} is clearly slower than its peers"
    else:
        sentence += "; no two groups do the same, so none can be called slow"
    return Answer(sentence + ".", f"{plural(len(groups), 'group')} and pairs communicated.")


def _is_slow(item: GroupTimes) -> bool:
    return (
        item.slowdown is not None
        and item.slowdown >= SLOW
        and item.slowdown_low is not None
        and item.slowdown_low > 1
    )


def _name(section: Section, group: Group) -> str:
    """ "the tp group of ranks 0 and 1"; a pair of ranks is a link."""
    axis = _axis(group)
    members = section.who(group.ranks) if group.ranks else "unknown ranks"
    if set(group.ranks) == set(section.run.ranks):
        members = "all ranks"
    return f"the {axis} group of {members}"


def _picture(section: Section, found: Sequence[GroupTimes]) -> Heatmap | None:
    """How much slower each rank's group is, axis by axis."""
    judged = [item for item in found if item.slowdown is not None and item.group.ranks]
    ranks = section.rank_order
    if not judged or len(ranks) > MANY_RANKS:
        return None
    axes = list(dict.fromkeys(_axis(item.group) for item in judged))[:SHOWN_AXES]
    worst: dict[tuple[str, int], float] = {}
    for item in judged:
        over = max((item.slowdown or 1.0) - 1.0, 0.0)
        for rank in item.group.ranks:
            key = (_axis(item.group), rank)
            worst[key] = max(worst.get(key, 0.0), over)
    return Heatmap(
        "Where: how much longer the transfers of a rank's group take than its peers'",
        tuple(axes),
        tuple(str(rank) for rank in ranks),
        tuple(tuple(worst.get((axis, rank)) for rank in ranks) for axis in axes),
        "ratio",
        "longer than peers",
        "",
        "rank",
        "0: as fast as its peers",
        Role.TRANSFER,
        "Both ends of a slow link are dark. Waiting for a late rank is not part of it.",
        least_top=SLOW - 1,
    )


def _axis(group: Group) -> str:
    if group.axis:
        return group.axis
    # What torch calls the group of everyone, which nobody named.
    return "world" if group.description in {"", "default_pg", "undefined"} else group.description


def _groups(section: Section, found: Sequence[GroupTimes]) -> Table:
    columns = (
        TableColumn("axis", "", numeric=False),
        TableColumn("ranks", "", numeric=False),
        TableColumn("where", "", numeric=False),
        TableColumn("n", "count", "Instances with a known transfer."),
        TableColumn("transfer p50", "ns", "Median transfer over its instances, of all sizes."),
        TableColumn("wait p50", "ns", "Median of the members' mean wait."),
        TableColumn("bus bandwidth p50", "gbps", "As nccl-tests define it."),
        TableColumn("against peers", "", "Transfer over that of groups that do the same."),
        TableColumn("mark", "", "Slow from 1.2 times its peers on, beyond doubt.", numeric=False),
    )
    order = sorted(found, key=lambda item: (-(item.slowdown or 0.0), item.group.ranks))
    rows = tuple(
        (
            _axis(item.group),
            _members(item.group),
            _where(section, item.group),
            item.n,
            item.transfer_p50_ns,
            item.wait_p50_ns,
            item.busbw_p50_gbps,
            item.slowdown,
            "▲ slow" if _is_slow(item) else "",
        )
        for item in order
    )
    keys = tuple(
        Key(rank=item.group.ranks[0] if len(item.group.ranks) == 1 else None, axis=item.group.axis)
        for item in order
    )
    return Table("Groups and links, slowest first", columns, rows, keys=keys)


def _silent_groups(section: Section) -> Table:
    columns = tuple(TableColumn(name, "", numeric=False) for name in ("axis", "ranks", "where"))
    rows = tuple(
        (_axis(group), _members(group), _where(section, group))
        for group in section.run.topology.groups
    )
    return Table("Process groups", columns, rows, "None of their calls could be matched.")


def _members(group: Group) -> str:
    if not group.ranks:
        return "not known"
    rest = len(group.ranks) - MEMBERS
    if rest <= 0 or _in_a_row(group.ranks):
        return _span(group.ranks)
    return f"{', '.join(map(str, group.ranks[:MEMBERS]))} and {rest} more"


def _where(section: Section, group: Group) -> str | None:
    hosts = sorted({section.hosts[rank] for rank in group.ranks if rank in section.hosts})
    if not hosts:
        return None
    return f"within {hosts[0]}" if len(hosts) == 1 else f"across {len(hosts)} hosts"


def _hosts(section: Section) -> list[Block]:
    members: dict[str, list[int]] = {}
    for rank, host in section.hosts.items():
        members.setdefault(host, []).append(rank)
    if len(members) < 2:
        return []
    columns = (
        TableColumn("host", "", numeric=False),
        TableColumn("ranks", "count"),
        TableColumn("which", "", numeric=False),
    )
    rows = tuple((host, len(ranks), _span(ranks)) for host, ranks in members.items())
    return [Table("Hosts", columns, rows)]


def _span(ranks: Sequence[int]) -> str:
    """ "0 to 7", or "0, 4, 8"."""
    if _in_a_row(ranks) and len(ranks) > 3:
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _in_a_row(ranks: Sequence[int]) -> bool:
    return list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))


def _links(section: Section) -> list[Block]:
    """The matrix of links between devices, as the conditions record it."""
    hardware = section.run.conditions.get("hardware")
    matrix = hardware.get("links") if isinstance(hardware, dict) else None
    if not isinstance(matrix, list) or not matrix or not all(isinstance(r, list) for r in matrix):
        return []
    wide = max(len(row) for row in matrix)
    columns = (
        TableColumn("device", "", numeric=False),
        *(TableColumn(str(i), "", numeric=False) for i in range(wide)),
    )
    rows = tuple(
        (str(i), *(None if v is None else str(v) for v in row), *([None] * (wide - len(row))))
        for i, row in enumerate(matrix)
    )
    words = (
        "NV: NVLink and its number of lanes; PIX, PXB, PHB: PCIe within a switch, across "
        "switches, through the host bridge; NODE, SYS: across NUMA nodes, across sockets."
    )
    return [Table("Links between the devices of a host", columns, rows, words)]


def _missing(section: Section) -> str | None:
    """Why there is nothing to show."""
    if len(section.run.traces) < 2 and not section.run.topology.groups:
        return "one rank alone has no group and no link; load the other ranks too"
    return None


PAGE = RunPage("Topology", "topology", build, order=85, missing=_missing)
