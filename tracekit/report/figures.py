"""Chart blocks to Plotly figures, as plain dictionaries.

Only the drawing is left to the browser: every label, unit and hover text is
made here. Colours are written as ``var(--role)`` and looked up in the style
sheet when drawn, so that a figure follows the theme; ``var(--role) 18%`` is
that colour, mostly transparent.

Plotly reads a few tags and entities in every text, so names are escaped for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from tracekit.report import format
from tracekit.report.blocks import Bars, Cube, Heatmap, Key, Line, Lines, Whiskers

Chart: TypeAlias = Bars | Heatmap | Lines | Whiskers

INK = "var(--ink)"
LABEL_LENGTHS = (28, 36, 46)
ROW_HEIGHT = 26
SINGLE_HEIGHT = 44
COLUMN_CHART_HEIGHT = 170
LINES_HEIGHT = 300
MOST_TICKS = 6
MOST_SIZES = 4  # steps between ticks of message sizes, whose labels are long
TICK_CHARACTERS = 36  # of all tick labels below a chart, so that they stay apart when narrow
MARGIN = 44  # for tick labels and an axis title

Figure = dict[str, Any]


def figure(block: Chart) -> Figure:
    """The figure of a chart block: data, layout, its height in pixels, and how it follows.

    ``follow`` is what the page's script needs to show a selection of ranks, steps or
    one mesh axis; it is absent where a chart is about the whole.
    """
    if isinstance(block, Bars):
        return _bars(block)
    if isinstance(block, Heatmap):
        return _heatmap(block)
    return _lines(block) if isinstance(block, Lines) else _whiskers(block)


def escape(text: str) -> str:
    """A name as literal text for Plotly, which would read tags and entities in it."""
    return format.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ticks(names: Sequence[str]) -> list[str]:
    """Names cut to fit beside a chart; less so where two would be cut to the same."""
    different = len(set(names))
    for length in LABEL_LENGTHS:
        short = [format.shorten(name, length) for name in names]
        if len(set(short)) == different:
            break
    return [escape(name) for name in short]


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
    made = {"data": data, "layout": layout, "height": height}
    follow = _follow_bars(block, units)
    return made | ({"follow": follow} if follow else {})


def _follow_bars(block: Bars, units: format.Scale) -> dict[str, Any]:
    """How the bars follow a selection: from the values by rank and step, or bar by bar."""
    shape = {"horizontal": block.horizontal, "suffix": units.suffix}
    if block.cube is not None:
        return {"kind": "cube", **shape, **_cube(block.cube, units)}
    if block.keys:
        return {"kind": "keys", **shape, **_keys(block.keys)}
    return {}


def _cube(cube: Cube, units: format.Scale) -> dict[str, Any]:
    return {
        "along": cube.along,
        "over": cube.over,
        "ranks": list(cube.ranks),
        "names": [escape(format.shorten(name)) for name in cube.names],
        "steps": list(cube.steps),
        "counted": [int(value) for value in cube.counted],
        "values": [
            [[_rounded(units.value(v)) for v in row] for row in matrix] for matrix in cube.values
        ],
    }


def _keys(keys: Iterable[Key]) -> dict[str, Any]:
    return {"keys": [[key.rank, key.step, key.axis] for key in keys]}


def _rounded(value: float | None) -> float | int | None:
    """Four significant digits: more than is shown, and half the bytes."""
    if value is None:
        return None
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() else short


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
    every = max(1, -(-sum(len(tick) + 1 for tick in ticks) // TICK_CHARACTERS))
    return {
        **_axis_title(title, visible=visible),
        "tickmode": "array",
        "tickvals": list(range(0, len(ticks), every)),
        "ticktext": _ticks(ticks[::every]),
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
        "ticktext": _ticks(names),
    }


def _heatmap(block: Heatmap) -> Figure:
    units = format.scale(block.unit, (block.top(),))
    rows = _category_axis(block.row_axis, block.rows, visible=True) | _downwards(block.rows)
    trace = {
        "type": "heatmap",
        "z": [[units.value(value) for value in row] for row in block.values],
        "x": list(range(len(block.columns))),
        "y": list(range(len(block.rows))),
        "zmin": 0,
        "zmax": units.value(block.top()) or 1,
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
        **(
            {
                "follow": {
                    "kind": "grid",
                    "ranks": list(block.row_ranks),
                    "steps": list(block.column_steps),
                }
            }
            if block.row_ranks or block.column_steps
            else {}
        ),
    }


def _heat_hover(block: Heatmap, row: int, column: int) -> str:
    value = format.quantity(block.values[row][column], block.unit)
    where = f"{format.shorten(block.rows[row])}, {block.column_axis} {block.columns[column]}"
    return f"{escape(where)}<br>{escape(block.value_axis)}: {value}"


def _lines(block: Lines) -> Figure:
    xs = [value for line in block.lines for value in line.x]
    ys = [*(v for line in block.lines for v in (*line.y, *line.low, *line.high)), *block.y_reach]
    across, up = format.scale(block.x_unit, xs), format.scale(block.y_unit, ys)
    data = [trace for line in block.lines for trace in _line_traces(block, line, across, up)]
    x = _number_axis(block.x_axis, across.suffix, log=block.x_log)
    if block.x_ticks:
        x |= {
            "tickmode": "array",
            "tickvals": [across.value(value) for value in block.x_ticks],
            "ticktext": [across.cell(value) for value in block.x_ticks],
        }
    elif block.x_log and block.x_unit == "bytes":
        x = _number_axis(block.x_axis, "", log=True) | _size_ticks(xs, across)
    elif block.x_log:
        x |= _log_ticks(xs, across)
    y = _number_axis(block.y_axis, up.suffix, log=block.y_log)
    if block.y_log:
        y |= _log_ticks(ys, up)
    layout = {"xaxis": x, "yaxis": y, "hovermode": "closest"}
    made: Figure = {"data": data, "layout": layout, "height": LINES_HEIGHT}
    axes = [line.axis for line in block.lines for _ in _line_traces(block, line, across, up)]
    return made | ({"follow": {"kind": "traces", "axes": axes}} if any(axes) else {})


def _number_axis(title: str, suffix: str, *, log: bool) -> dict[str, Any]:
    axis = _value_axis(title, suffix, visible=True) | {"fixedrange": False}
    return axis | {"type": "log", "rangemode": "normal"} if log else axis


def _log_ticks(values: Iterable[float | None], units: format.Scale) -> dict[str, Any]:
    """Few round ticks and some air around them; the values themselves where those are few."""
    present = sorted({v for v in map(units.value, values) if v is not None and v > 0})
    if not present:
        return {}
    low, high = math.log10(present[0]), math.log10(present[-1])
    ticks = present
    apart = all(after >= 1.5 * before for before, after in pairwise(present))
    if len(present) > MOST_TICKS or not apart:
        steps = (1,) if high - low > 3 else (1, 2, 5)
        ticks = [m * 10.0**d for d in range(math.floor(low), math.ceil(high) + 1) for m in steps]
    air = max(0.15, 0.05 * (high - low))
    return {
        "tickmode": "array",
        "tickvals": ticks,
        "ticktext": [format.significant(tick) for tick in ticks],
        "range": [low - air, high + air],
    }


def _size_ticks(values: Iterable[float | None], units: format.Scale) -> dict[str, Any]:
    """Powers of two, each in its own unit: over decades of sizes one unit reads badly."""
    axis = _log_ticks(values, units)
    present = [value for value in values if value is not None and value > 0]
    if not present:
        return axis
    low, high = (math.log2(edge(present)) for edge in (min, max))
    every = next(step for step in (1, 2, 4, 6, 10, 20, 40) if (high - low) / step <= MOST_SIZES)
    first, last = math.floor(low / every), math.ceil(high / every)
    ticks = [2.0 ** (every * place) for place in range(first, last + 1)]
    own = [format.scale("bytes", (tick,)) for tick in ticks]
    return axis | {
        "tickvals": [units.value(tick) for tick in ticks],
        "ticktext": [f"{s.value(t):g} {s.suffix}" for t, s in zip(ticks, own, strict=True)],
    }


def _line_traces(
    block: Lines, line: Line, across: format.Scale, up: format.Scale
) -> list[dict[str, Any]]:
    """The band, if there is one, then the line with its points."""
    color = f"var(--{line.role.value})"
    x = [across.value(value) for value in line.x]
    traces: list[dict[str, Any]] = []
    if line.low and line.high:
        edge = {
            "type": "scatter",
            "x": x,
            "mode": "lines",
            "hoverinfo": "skip",
            "line": {"width": 0, "color": color},
        }
        low, high = ([up.value(v) for v in values] for values in (line.low, line.high))
        traces.append({**edge, "y": low})
        traces.append({**edge, "y": high, "fill": "tonexty", "fillcolor": f"{color} 18%"})
    hover = [
        "<br>".join(escape(format.shorten(word)) for word in words if word)
        for words in _line_words(block, line)
    ]
    traces.append(
        {
            "type": "scatter",
            "x": x,
            "y": [up.value(value) for value in line.y],
            "mode": "lines" if line.dashed else "lines+markers",
            "name": escape(line.label),
            "line": {"color": color, "width": 2, "dash": "dot" if line.dashed else "solid"},
            "marker": {"color": color, "size": 7},
            "hovertext": hover,
            "hoverinfo": "text",
        }
    )
    return traces


def _line_words(block: Lines, line: Line) -> Iterable[tuple[str, ...]]:
    for place, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
        at = f"{block.x_axis}: {format.quantity(x, block.x_unit)}"
        shown = f"{block.y_axis}: {format.quantity(y, block.y_unit)}"
        yield (line.label, at, shown, line.hover[place] if line.hover else "")


def _ends(block: Whiskers, units: format.Scale) -> tuple[list[float], list[float]]:
    """Lower and upper ends; one without bound is drawn beyond all others."""
    known = [units.value(v) for row in block.rows for v in (row.low, row.value, row.high)]
    far = 1.3 * max((abs(v) for v in known if v is not None), default=1.0)
    low, high = [], []
    for row in block.rows:
        a, b = units.value(row.low), units.value(row.high)
        low.append(-far if a is None else a)
        high.append(far if b is None else b)
    return low, high


def _whiskers(block: Whiskers) -> Figure:
    units = format.scale(
        block.unit, [v for row in block.rows for v in (row.low, row.high, row.value, row.noise)]
    )
    places = list(range(len(block.rows)))
    value = [units.value(row.value) or 0.0 for row in block.rows]
    low, high = _ends(block, units)
    ends = {
        "type": "data",
        "symmetric": False,
        "array": [end - v for end, v in zip(high, value, strict=True)],
        "arrayminus": [v - end for end, v in zip(low, value, strict=True)],
        "color": INK,
        "thickness": 1.5,
        "width": 5,
    }
    hover = [
        f"{escape(row.label)}<br>difference {format.quantity(row.value, block.unit)}"
        f"<br>95 % interval {format.quantity(row.low, block.unit)} to "
        f"{format.quantity(row.high, block.unit)}"
        f"<br>noise ±{format.quantity(row.noise, block.unit)}<br>{escape(row.verdict)}"
        for row in block.rows
    ]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": value,
        "y": places,
        "error_x": ends,
        "marker": {"color": INK, "size": 9},
        "hovertext": hover,
        "hoverinfo": "text",
    }
    bands = [
        {
            "type": "rect",
            "layer": "below",
            "x0": -(units.value(row.noise) or 0.0),
            "x1": units.value(row.noise),
            "y0": place - 0.36,
            "y1": place + 0.36,
            "fillcolor": "var(--idle)",
            "line": {"width": 0},
        }
        for place, row in zip(places, block.rows, strict=True)
    ]
    labels = _category_axis("", [row.label for row in block.rows], visible=True)
    across = _value_axis(block.value_axis, units.suffix, visible=True) | {"rangemode": "normal"}
    return {
        "data": [points],
        "layout": {
            "xaxis": across | {"zerolinewidth": 2},
            "yaxis": labels | _downwards([row.label for row in block.rows]),
            "shapes": bands,
        },
        "height": ROW_HEIGHT * len(block.rows) + MARGIN + 10,
    }
