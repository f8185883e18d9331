"""A timeline block as plain data for the page's script, as small as it can be.

Starts are differences from the end of the interval before, which are short
numbers; everything else is an index. Names are escaped by the script, which
writes them as text and never as markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.report import format
from tracekit.report.blocks import Lane, Timeline, TimelineView

LANE_HEIGHT = 22
MOST_HEIGHT = 40  # of a lane, when there are few
COMFORTABLE = 160  # of the whole, when there are few lanes
AXIS_HEIGHT = 26


def lanes(block: Timeline) -> dict[str, Any]:
    """Views, roles, names and the height in pixels."""
    most = max((len(view.lanes) for view in block.views), default=0)
    lane = min(MOST_HEIGHT, max(LANE_HEIGHT, COMFORTABLE // max(1, most)))
    return {
        "height": AXIS_HEIGHT + lane * most,
        "lane": lane,
        "roles": [[role.value, label] for role, label in block.roles],
        "names": [format.plain(format.shorten(name, 120)) for name in block.names],
        "chosen": block.chosen,
        "views": [_view(view) for view in block.views],
    }


def _view(view: TimelineView) -> dict[str, Any]:
    return {
        "label": view.label,
        "step": view.step,
        "span": view.span_ns,
        "note": view.note,
        "lanes": [_lane(lane) for lane in view.lanes],
    }


def _lane(lane: Lane) -> dict[str, Any]:
    made: dict[str, Any] = {
        "label": format.plain(format.shorten(lane.label, 28)),
        "rank": lane.rank,
        "gap": _gaps(lane.starts, lane.lengths),
        "length": lane.lengths,
        "role": lane.roles,
        "name": lane.names,
    }
    return made | ({"count": lane.counts} if lane.counts else {})


def _gaps(starts: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Start of each interval after the end of the one before."""
    ends = [0, *(start + length for start, length in zip(starts, lengths, strict=True))]
    return [start - end for start, end in zip(starts, ends, strict=False)]
