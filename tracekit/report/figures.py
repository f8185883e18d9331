"""Chart blocks to Plotly figures, as plain dictionaries.

Only the drawing is left to the browser: every label, unit and hover text is
made here. Colours are written as ``var(--role)`` and looked up in the style
sheet when drawn, so that a figure follows the theme.

Plotly reads a few tags and entities in every text, so names are escaped for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.report import format
from tracekit.report.blocks import Bars, Heatmap

INK = "var(--ink)"
LABEL_LENGTH = 28
ROW_HEIGHT = 26
SINGLE_HEIGHT = 44
COLUMN_CHART_HEIGHT = 170
TICK_CHARACTERS = 36  # of all tick labels below a chart, so that they stay apart when narrow
MARGIN = 44  # for tick labels and an axis title

Figure = dict[str, Any]


def figure(block: Bars | Heatmap) -> Figure:
    """The figure of a chart block: data, layout, and its height in pixels."""
    return _bars(block) if isinstance(block, Bars) else _heatmap(block)


def escape(text: str) -> str:
    """A name as literal text for Plotly, which would read tags and entities in it."""
    return format.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _tick(text: str) -> str:
    return escape(format.shorten(text, LABEL_LENGTH))


def _bars(block: Bars) -> Figure:
    totals = _totals(block)
    units = format.scale(block.unit, totals)
    single = len(block.labels) == 1
    data = [_bar_trace(block, index, units) for index in range(len(block.series))]
    values = _value_axis(block.value_axis, units.suffix, visible=not single)
    labels = _category_axis(block.label_axis, block.ticks or block.labels, visible=not single)
    if block.horizontal:
        labels |= _downwards(block.labels)
        height = ROW_HEIGHT * len(block.labels) + MARGIN + 10
    else:
        height = COLUMN_CHART_HEIGHT
    sideways = block.horizontal or single
    gap = 0.3 if block.horizontal else 0.12
    layout: dict[str, Any] = {
        "barmode": "stack",
        "bargap": gap,
        "xaxis": values if sideways else labels,
        "yaxis": labels if sideways else values,
        "shapes": [
            _outline((1 - gap) / 2, place, units.value(totals[place]), sideways)
            for place in sorted(block.marked)
        ],
    }
    if single:  # edge to edge, like a line of text
        values |= {"range": [0, units.value(totals[0]) or 1], "automargin": False}
        labels |= {"automargin": False}
        layout |= {"bargap": 0, "margin": {"l": 0, "r": 0, "t": 0, "b": 0}}
        height = SINGLE_HEIGHT
    return {"data": data, "layout": layout, "height": height}


def _totals(block: Bars) -> list[float]:
    columns = zip(*(series.values for series in block.series), strict=True)
    return [sum(value or 0.0 for value in column) for column in columns]


def _outline(half: float, position: int, total: float | None, sideways: bool) -> dict[str, Any]:
    """A dark frame around one whole bar."""
    across, along = (position - half, position + half), (0, total)
    x, y = (along, across) if sideways else (across, along)
    line = {"color": INK, "width": 2}
    return {"type": "rect", "x0": x[0], "x1": x[1], "y0": y[0], "y1": y[1], "line": line}


def _bar_trace(block: Bars, index: int, units: format.Scale) -> dict[str, Any]:
    series = block.series[index]
    positions = list(range(len(block.labels)))
    lengths = [units.value(value) for value in series.values]
    sideways = block.horizontal or len(block.labels) == 1
    hover = [
        f"{escape(format.shorten(label))}<br>{escape(series.label)}: "
        f"{format.quantity(value, block.unit)}"
        for label, value in zip(block.labels, series.values, strict=True)
    ]
    return {
        "type": "bar",
        "orientation": "h" if sideways else "v",
        "x": lengths if sideways else positions,
        "y": positions if sideways else lengths,
        "name": escape(series.label),
        "marker": {"color": f"var(--{series.role.value})", "line": {"width": 0}},
        "hovertext": hover,
        "hoverinfo": "text",
        "textposition": "none",
    }


def _value_axis(title: str, suffix: str, *, visible: bool) -> dict[str, Any]:
    return {
        **_axis_title(f"{title} ({suffix})" if suffix else title, visible=visible),
        "rangemode": "tozero",
        "fixedrange": True,
        "visible": visible,
        "showgrid": True,
        "zeroline": True,
        "nticks": 6,
        "automargin": True,
    }


def _axis_title(text: str, *, visible: bool) -> dict[str, Any]:
    if not text or not visible:
        return {}
    return {"title": {"text": escape(text), "font": {"size": 12}, "standoff": 6}}


def _category_axis(title: str, ticks: Sequence[str], *, visible: bool) -> dict[str, Any]:
    # Positions, not names: two long names may be cut to the same label.
    every = max(1, -(-sum(map(len, ticks)) // TICK_CHARACTERS))
    return {
        **_axis_title(title, visible=visible),
        "tickmode": "array",
        "tickvals": list(range(0, len(ticks), every)),
        "ticktext": [_tick(tick) for tick in ticks[::every]],
        "tickangle": 0,
        "range": [-0.5, len(ticks) - 0.5],
        "fixedrange": True,
        "visible": visible,
        "ticks": "",
        "showgrid": False,
        "zeroline": False,
        "automargin": True,
    }


def _downwards(names: Sequence[str]) -> dict[str, Any]:
    """A vertical category axis: the first name on top, as in the tables, and none left out."""
    return {
        "range": [len(names) - 0.5, -0.5],
        "tickvals": list(range(len(names))),
        "ticktext": [_tick(name) for name in names],
    }


def _heatmap(block: Heatmap) -> Figure:
    flat = [value for row in block.values for value in row]
    units = format.scale(block.unit, flat)
    rows = _category_axis(block.row_axis, block.rows, visible=True) | _downwards(block.rows)
    trace = {
        "type": "heatmap",
        "z": [[units.value(value) for value in row] for row in block.values],
        "x": list(range(len(block.columns))),
        "y": list(range(len(block.rows))),
        "zmin": 0,
        "zmax": max((v for v in map(units.value, flat) if v is not None), default=0) or 1,
        "colorscale": [[0, "var(--zero)"], [1, f"var(--{block.role.value})"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "hovertext": [
            [_heat_hover(block, i, j) for j in range(len(block.columns))]
            for i in range(len(block.rows))
        ],
        "hoverinfo": "text",
    }
    return {
        "data": [trace],
        "layout": {
            "xaxis": _category_axis(block.column_axis, block.columns, visible=True),
            "yaxis": rows,
        },
        "height": ROW_HEIGHT * len(block.rows) + MARGIN + 10,
    }


def _heat_hover(block: Heatmap, row: int, column: int) -> str:
    value = format.quantity(block.values[row][column], block.unit)
    where = f"{format.shorten(block.rows[row])}, {block.column_axis} {block.columns[column]}"
    return f"{escape(where)}<br>{escape(block.value_axis)}: {value}"
