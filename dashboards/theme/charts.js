// Draws charts with Plotly, and draws them again for a theme, a selection or paper.
const drawn = new Map(); // chart element -> its figure
const ROW_HEIGHT = 26;
const MOST_BARS = 64;
const TICK_CHARACTERS = 36;
const family = getComputedStyle(document.body).fontFamily;
const baseLayout = {
  margin: { l: 8, r: 8, t: 4, b: 4 },
  paper_bgcolor: "rgba(0,0,0,0)",
  plot_bgcolor: "rgba(0,0,0,0)",
  showlegend: false,
  minreducedheight: 20, // a chart of one row has little to give
  font: { family, size: 12, color: "var(--muted)" },
  hoverlabel: {
    align: "left",
    bgcolor: "var(--card)",
    bordercolor: "var(--muted)",
    font: { color: "var(--ink)", size: 12, family },
  },
};
const baseAxis = { gridcolor: "var(--line)", zerolinecolor: "var(--faint)", linecolor: "var(--line)" };
const config = { displayModeBar: false, responsive: true };

let loading = null;
function loadPlotly() {
  loading ??= startPlotly();
  return loading;
}

async function startPlotly() {
  if (!document.getElementById("plotly")) return waitForPlotly(); // beside this file, or from a CDN
  return unpackPlotly();
}

async function waitForPlotly() {
  if (document.readyState !== "complete") {
    await new Promise((resolve) => window.addEventListener("load", resolve, { once: true }));
  }
  if (!window.Plotly) throw new Error("plotly.js is not where this report expects it");
  return window.Plotly;
}

// The script's text must hash to what the policy allows, so it is inserted unchanged.
async function unpackPlotly() {
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = Uint8Array.from(packed, (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
  if (!window.Plotly) throw new Error("plotly.js did not start");
  return window.Plotly;
}

// "var(--role)" -> the colour it has in the present theme; "var(--role) 18%" is see-through.
function colour(text, style) {
  const match = /^var\((--[a-z]+)\)(?: (\d+)%)?$/.exec(text);
  if (!match) return text;
  const value = style.getPropertyValue(match[1]).trim();
  if (!match[2]) return value;
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
  return `rgba(${r},${g},${b},${match[2] / 100})`;
}

function themed(value, style) {
  if (typeof value === "string") return value.startsWith("var(--") ? colour(value, style) : value;
  if (Array.isArray(value)) return value.map((item) => themed(item, style));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, style)]));
  }
  return value;
}

function drawChart(plotly, element, figure, width) {
  const style = getComputedStyle(document.documentElement);
  const { data, layout: own, height } = following(element, figure);
  const full = {
    ...baseLayout,
    ...own,
    height,
    ...(width ? { width, autosize: false } : { autosize: true }),
    xaxis: { ...baseAxis, ...own.xaxis },
    yaxis: { ...baseAxis, ...own.yaxis },
  };
  const first = !drawn.has(element);
  drawn.set(element, figure);
  element.style.minHeight = `${height}px`;
  const done = plotly.react(element, themed(data, style), themed(full, style), config);
  if (first) element.on("plotly_click", (event) => clicked(figure, element, event.points[0]));
  return done;
}

// -- following the selection ------------------------------------------------------------

function following(element, figure) {
  const follow = figure.follow;
  const nothing = !selection.ranks && !selection.steps && !selection.axis;
  element.following = null;
  if (follow?.kind === "cube") showLegend(element, nothing ? null : figure, null);
  if (!follow || nothing) return figure;
  if (follow.kind === "cube") return followCube(element, figure, follow);
  if (follow.kind === "grid") return followGrid(figure, follow);
  if (follow.kind === "traces") {
    const visible = (axis) => !selection.axis || !axis || axis === selection.axis;
    return { ...figure, data: figure.data.map((t, i) => ({ ...t, visible: visible(follow.axes[i]) })) };
  }
  return followKeys(figure, follow);
}

function places(set, known, allowed) {
  const all = known.map((_, i) => i);
  return set ? all.filter((i) => set.has(known[i])) : all.filter(allowed);
}

function followCube(element, figure, follow) {
  const ranks = places(selection.ranks, follow.ranks, () => true);
  const steps = places(selection.steps, follow.steps, (i) => follow.counted[i] || follow.along === "step");
  if (follow.along === "rank" && ranks.length > MOST_BARS) return figure;
  const bars = follow.along === "rank" ? ranks : follow.along === "step" ? steps : [-1];
  const take = (matrix, bar) => {
    const rows = follow.along === "rank" ? [bar] : ranks;
    const columns = follow.along === "step" ? [bar] : steps;
    return over(follow.over, rows.flatMap((r) => columns.map((c) => matrix[r][c])));
  };
  const values = follow.values.map((matrix) => bars.map((bar) => take(matrix, bar)));
  const labels = bars.map((bar) =>
    follow.along === "rank" ? follow.names[bar] : follow.along === "step" ? `step ${follow.steps[bar]}` : "",
  );
  const ids = bars.map((bar) => (follow.along === "rank" ? follow.ranks[bar] : follow.steps[bar]));
  element.following = ids;
  if (follow.along === "") showLegend(element, figure, values.map((v) => v[0]));
  return rebar(figure, follow, values, labels, follow.horizontal ? labels : ids.map(String));
}

// The legend of a single bar holds its values; it goes back to what was written there.
function showLegend(element, figure, values) {
  const spots = element.closest("figure")?.querySelectorAll(".legend .value") ?? [];
  spots.forEach((spot, i) => {
    spot.dataset.whole ??= spot.textContent;
    if (!values) {
      spot.textContent = spot.dataset.whole;
      return;
    }
    const total = values.reduce((a, b) => a + (b ?? 0), 0);
    const share = total ? `, ${significant((100 * (values[i] ?? 0)) / total)} %` : "";
    spot.textContent = quantity(values[i], figure.follow.suffix) + share;
  });
}

function rebar(figure, follow, values, labels, ticks) {
  const along = figure.data[0].orientation === "h" ? ["x", "y"] : ["y", "x"];
  const data = figure.data.map((trace, i) => ({
    ...trace,
    [along[0]]: values[i],
    [along[1]]: labels.map((_, k) => k),
    hovertext: labels.map((label, k) =>
      [label, `${trace.name}: ${quantity(values[i][k], follow.suffix)}`].filter(Boolean).join("<br>"),
    ),
  }));
  const layout = { ...figure.layout, shapes: [] };
  const totals = labels.map((_, k) => values.reduce((sum, v) => sum + (v[k] ?? 0), 0));
  if (follow.along === "") {
    const axis = `${along[0]}axis`;
    layout[axis] = { ...layout[axis], range: [0, totals[0] || 1] };
    return { data, layout, height: figure.height };
  }
  return { data, layout: relabel(layout, along[1], labels, ticks, follow.horizontal), height: heightOf(figure, follow, labels) };
}

function heightOf(figure, follow, labels) {
  return follow.horizontal ? ROW_HEIGHT * labels.length + 54 : figure.height;
}

function relabel(layout, axis, labels, ticks, downwards) {
  const every = downwards ? 1 : Math.max(1, Math.ceil((ticks.join(" ").length + 1) / TICK_CHARACTERS));
  const at = ticks.map((_, i) => i).filter((i) => i % every === 0);
  const range = downwards ? [labels.length - 0.5, -0.5] : [-0.5, labels.length - 0.5];
  const name = `${axis}axis`;
  return { ...layout, [name]: { ...layout[name], tickvals: at, ticktext: at.map((i) => ticks[i]), range } };
}

function followKeys(figure, follow) {
  const kept = follow.keys.map((_, i) => i).filter((i) => isChosen(follow.keys[i]));
  if (kept.length === follow.keys.length || !kept.length) return figure;
  const along = figure.data[0].orientation === "h" ? ["x", "y"] : ["y", "x"];
  const ticks = figure.layout[`${along[1]}axis`].ticktext;
  const data = figure.data.map((trace) => ({
    ...trace,
    [along[0]]: kept.map((i) => trace[along[0]][i]),
    [along[1]]: kept.map((_, k) => k),
    hovertext: kept.map((i) => trace.hovertext[i]),
  }));
  const names = kept.map((i) => ticks[i] ?? "");
  const layout = relabel({ ...figure.layout, shapes: [] }, along[1], names, names, follow.horizontal);
  return { data, layout, height: heightOf(figure, follow, names) };
}

function followGrid(figure, follow) {
  const trace = figure.data[0];
  const pick = (set, known, length) => {
    const all = [...Array(length).keys()];
    if (!set || !known.length) return all;
    const kept = all.filter((i) => set.has(known[i]));
    return kept.length ? kept : all;
  };
  const rows = pick(selection.ranks, follow.ranks, trace.z.length);
  const columns = pick(selection.steps, follow.steps, trace.x.length);
  const cut = (matrix) => rows.map((r) => columns.map((c) => matrix[r][c]));
  const data = [{ ...trace, z: cut(trace.z), hovertext: cut(trace.hovertext),
    x: columns.map((_, i) => i), y: rows.map((_, i) => i) }];
  const { xaxis, yaxis } = figure.layout;
  const name = (axis, i) => axis.ticktext[axis.tickvals.indexOf(i)] ?? "";
  const across = columns.map((i) => (follow.steps.length ? `${follow.steps[i]}` : name(xaxis, i)));
  const down = rows.map((i) => name(yaxis, i));
  let layout = relabel(figure.layout, "x", across, across, false);
  layout = relabel(layout, "y", down, down, true);
  return { data, layout, height: ROW_HEIGHT * rows.length + 54 };
}

// A bar chooses its rank or step; a cell chooses both.
function clicked(figure, element, point) {
  const follow = figure.follow;
  if (!follow || !point) return;
  const at = figure.data[0].orientation === "h" ? point.y : point.x;
  if (follow.kind === "cube" && follow.along) {
    const known = follow.along === "rank" ? follow.ranks : follow.steps;
    const condensed = follow.along === "rank" && known.length > MOST_BARS;
    const id = element.following ? element.following[at] : condensed ? figure.ids?.[at] : known[at];
    if (id !== undefined) toggle(follow.along === "rank" ? "ranks" : "steps", id);
  }
  if (follow.kind === "grid") {
    const rows = follow.ranks.filter((r) => !selection.ranks || selection.ranks.has(r));
    const columns = follow.steps.filter((s) => !selection.steps || selection.steps.has(s));
    const rank = rows[point.y];
    const step = columns[point.x];
    choose({
      ...(rank >= 0 ? { ranks: new Set([rank]) } : {}),
      ...(step !== undefined ? { steps: new Set([step]) } : {}),
    });
  }
}

// -- saving ------------------------------------------------------------------------------

function download(name, href) {
  const link = document.createElement("a");
  link.download = name;
  link.href = href;
  link.click();
}

function fileName(element, kind) {
  const title = element.closest("figure")?.querySelector("h3")?.textContent ?? "chart";
  return `${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60)}.${kind}`;
}

async function saveChart(element, kind) {
  const background = getComputedStyle(document.documentElement).getPropertyValue("--card").trim();
  const { width, height } = element.getBoundingClientRect();
  const plotly = await loadPlotly();
  const options = { format: kind, width, height, scale: kind === "png" ? 2 : 1 };
  const figure = { data: element.data, layout: { ...element.layout, paper_bgcolor: background } };
  download(fileName(element, kind), await plotly.toImage(figure, options));
}

function addTools(element, save, kinds) {
  const tools = document.createElement("span");
  tools.className = "tools";
  for (const kind of kinds) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "save";
    button.textContent = kind.toUpperCase();
    button.title = `Save this chart as ${kind.toUpperCase()}`;
    button.addEventListener("click", () => save(element, kind));
    tools.append(button);
  }
  headOf(element.closest("figure")?.querySelector("h3"))?.append(tools);
}

// A title and the tools beside it stand in one line.
function headOf(title) {
  if (!title) return null;
  if (title.parentElement.classList.contains("head")) return title.parentElement;
  const head = document.createElement("div");
  head.className = "head";
  title.before(head);
  head.append(title);
  return head;
}
