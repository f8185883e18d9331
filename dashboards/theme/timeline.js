// Swim lanes on one time axis, on a canvas: tens of thousands of intervals stay quick.
const timelines = new Map(); // element -> its state
const AXIS_HEIGHT = 26;

function timelineOf(element) {
  if (!timelines.has(element)) timelines.set(element, makeTimeline(element));
  return timelines.get(element);
}

function makeTimeline(element) {
  const data = JSON.parse(document.querySelector(`script[data-chart="${element.id}"]`).textContent);
  const canvas = document.createElement("canvas");
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  const note = document.createElement("p");
  note.className = "caption";
  element.append(canvas, tip);
  element.after(note);
  const state = { data, canvas, tip, note, view: data.chosen, from: 0, to: 0, own: null, drag: null };
  if (data.views.length > 1) state.picker = makePicker(element, state);
  listen(element, state);
  return state;
}

// Choosing a step here chooses it for all pages.
function makePicker(element, state) {
  const label = document.createElement("label");
  label.className = "picker";
  const select = document.createElement("select");
  select.setAttribute("aria-label", "What the timeline shows");
  state.data.views.forEach((view, i) => select.append(new Option(view.label, i)));
  select.addEventListener("change", () => {
    const view = state.data.views[select.value];
    state.own = Number(select.value);
    if (view.step === null) drawTimeline(element);
    else choose({ steps: new Set([view.step]) });
  });
  label.append("Show ", select);
  headOf(element.closest("figure").querySelector("h3")).append(label);
  return select;
}

function viewOf(state) {
  const { views, chosen: first } = state.data;
  const wanted = views.findIndex((view) => selection.steps?.has(view.step));
  if (wanted >= 0) return wanted;
  return state.own !== null && views[state.own].step === null ? state.own : first;
}

function lanesOf(state) {
  const lanes = state.data.views[state.view].lanes;
  if (!selection.ranks) return lanes;
  const kept = lanes.filter((lane) => selection.ranks.has(lane.rank));
  return kept.length ? kept : lanes;
}

// Starts arrive as gaps; they are summed once.
function decoded(lane) {
  if (!lane.start) {
    let end = 0;
    lane.start = Float64Array.from(lane.gap, (gap, i) => {
      const start = end + gap;
      end = start + lane.length[i];
      return start;
    });
  }
  return lane;
}

function drawTimeline(element, paper) {
  const state = timelineOf(element);
  const view = viewOf(state);
  if (view !== state.view || state.to === 0) {
    state.view = view;
    state.from = 0;
    state.to = state.data.views[view].span;
  }
  if (paper) Object.assign(state, { from: 0, to: state.data.views[view].span });
  if (state.picker) state.picker.value = view;
  const missing = selection.steps && !selection.steps.has(state.data.views[view].step);
  state.note.textContent = [
    missing ? `The timeline does not hold the chosen step; ${state.data.views[view].label} is shown.` : "",
    state.data.views[view].note,
  ].join(" ").trim();
  state.lanes = lanesOf(state).map(decoded);
  state.width = paper || element.clientWidth;
  state.height = AXIS_HEIGHT + state.data.lane * state.lanes.length;
  element.style.minHeight = `${state.height}px`;
  const ratio = Math.max(2, window.devicePixelRatio || 1);
  const { canvas } = state;
  canvas.width = state.width * ratio;
  canvas.height = state.height * ratio;
  canvas.style.width = `${state.width}px`;
  canvas.style.height = `${state.height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  paint(state, penOf(pen), getComputedStyle(document.documentElement));
}

// The few strokes a timeline needs; the SVG pen has the same ones.
function penOf(context) {
  context.textBaseline = "middle";
  return {
    rect(x, y, w, h, fill) {
      context.fillStyle = fill;
      context.fillRect(x, y, w, h);
    },
    text(x, y, words, fill, anchor, most) {
      context.font = `12px ${family}`;
      context.fillStyle = fill;
      context.textAlign = anchor;
      context.fillText(most ? fitted(context, words, most) : words, x, y);
    },
  };
}

function fitted(context, words, most) {
  if (context.measureText(words).width <= most) return words;
  let keep = Math.floor((words.length * most) / context.measureText(words).width) - 1;
  while (keep > 0 && context.measureText(`${words.slice(0, keep)}…`).width > most) keep--;
  return keep > 2 ? `${words.slice(0, keep)}…` : "";
}

function gutter(state) {
  const longest = Math.max(...state.lanes.map((lane) => lane.label.length), 4);
  return Math.min(state.width * 0.3, 14 + longest * 6.6);
}

function paint(state, pen, style) {
  const ink = (name) => style.getPropertyValue(`--${name}`).trim();
  const left = gutter(state);
  const room = state.width - left - 8;
  const x = (ns) => left + ((ns - state.from) / (state.to - state.from)) * room;
  state.x = { left, room };
  paintAxis(state, pen, x, ink);
  const colours = state.data.roles.map(([role]) => ink(role));
  state.lanes.forEach((lane, row) => {
    const top = AXIS_HEIGHT + row * state.data.lane;
    pen.text(left - 8, top + state.data.lane / 2, lane.label, ink("muted"), "right", left - 10);
    pen.rect(left, top + 2, room, state.data.lane - 4, ink("idle"));
    paintLane(state, pen, lane, top, x, colours, ink);
  });
}

function paintAxis(state, pen, x, ink) {
  const span = state.to - state.from;
  const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]].find(([s]) => span / s >= 2) ?? [1, "ns"];
  const rough = span / size / Math.max(2, state.x.room / 90);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((value) => value >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step)));
  for (let tick = Math.ceil(state.from / size / step) * step; tick * size <= state.to; tick += step) {
    const at = x(tick * size);
    if (at > state.x.left + state.x.room - 12) continue;
    pen.rect(at, AXIS_HEIGHT - 6, 1, state.height - AXIS_HEIGHT + 6, ink("line"));
    pen.text(at, 10, tick.toLocaleString("en-US", { maximumFractionDigits: digits }), ink("muted"), "center");
  }
  pen.text(state.x.left - 12, 10, unit, ink("muted"), "right");
}

function firstVisible(lane, from) {
  let low = 0;
  let high = lane.start.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (lane.start[mid] + lane.length[mid] < from) low = mid + 1;
    else high = mid;
  }
  return low;
}

function paintLane(state, pen, lane, top, x, colours, ink) {
  const height = state.data.lane - 4;
  const right = state.x.left + state.x.room;
  for (let i = firstVisible(lane, state.from); i < lane.start.length && lane.start[i] < state.to; i++) {
    const from = Math.max(x(lane.start[i]), state.x.left);
    const to = Math.min(x(lane.start[i] + lane.length[i]), right);
    const width = Math.max(to - from, 0.5);
    pen.rect(from, top + 2, width, height, colours[lane.role[i]]);
    if (width > 48 && lane.name[i] >= 0) {
      const words = state.data.names[lane.name[i]];
      pen.text(from + 5, top + 2 + height / 2, words, ink(onColour(state.data.roles[lane.role[i]][0])), "left", width - 10);
    }
  }
}

// Dark words on the pale colours, light ones on the others, in both themes.
function onColour(role) {
  return ["wait", "idle", "faint", "zero", "hiding", "backward"].includes(role) ? "on-pale" : "on-deep";
}

// -- hover, zoom, keys --------------------------------------------------------------------

function listen(element, state) {
  const { canvas } = state;
  const ns = (event) => {
    const at = event.clientX - canvas.getBoundingClientRect().left - state.x.left;
    const share = Math.min(1, Math.max(0, at / state.x.room));
    return state.from + share * (state.to - state.from);
  };
  canvas.addEventListener("mousemove", (event) => hover(state, event, ns(event)));
  canvas.addEventListener("mouseleave", () => (state.tip.hidden = true));
  canvas.addEventListener("mousedown", (event) => {
    state.drag = ns(event);
    event.preventDefault();
    element.focus({ preventScroll: true });
  });
  window.addEventListener("mouseup", (event) => {
    if (state.drag === null) return;
    const [a, b] = [state.drag, ns(event)].sort((p, q) => p - q);
    state.drag = null;
    if ((b - a) / (state.to - state.from) > 0.01) zoom(element, state, a, b);
    else drawTimeline(element);
  });
  canvas.addEventListener("dblclick", () => zoom(element, state, 0, Infinity));
  element.addEventListener("keydown", (event) => keyed(element, state, event));
  new ResizeObserver(() => element.clientWidth && element.clientWidth !== state.width && drawTimeline(element)).observe(element);
}

function zoom(element, state, from, to) {
  const whole = state.data.views[state.view].span;
  const least = Math.min(whole, 100); // ns
  const span = Math.max(least, Math.min(to, whole) - Math.max(from, 0));
  state.from = Math.max(0, Math.min(from, whole - span));
  state.to = state.from + span;
  drawTimeline(element);
}

function keyed(element, state, event) {
  const span = state.to - state.from;
  const middle = (state.from + state.to) / 2;
  const moves = {
    ArrowLeft: () => zoom(element, state, Math.max(0, state.from - span / 5), Math.max(0, state.from - span / 5) + span),
    ArrowRight: () => zoom(element, state, state.from + span / 5, state.to + span / 5),
    "+": () => zoom(element, state, middle - span / 4, middle + span / 4),
    "=": () => zoom(element, state, middle - span / 4, middle + span / 4),
    "-": () => zoom(element, state, middle - span, middle + span),
    0: () => zoom(element, state, 0, Infinity),
  };
  if (!moves[event.key] || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  moves[event.key]();
}

function hover(state, event, ns) {
  const box = state.canvas.getBoundingClientRect();
  if (state.drag !== null) {
    drawDrag(state, ns);
    state.tip.hidden = true;
    return;
  }
  const lane = state.lanes[Math.floor((event.clientY - box.top - AXIS_HEIGHT) / state.data.lane)];
  const at = lane ? under(state, lane, ns) : -1;
  state.tip.hidden = at < 0;
  if (at < 0) return;
  state.tip.replaceChildren(...hoverLines(state, lane, at).map((words, i) => {
    const line = document.createElement(i ? "span" : "b");
    line.textContent = words;
    return line;
  }));
  const x = event.clientX - box.left;
  const wide = state.tip.offsetWidth;
  state.tip.style.left = `${Math.max(0, Math.min(x + 12, state.width - wide))}px`;
  state.tip.style.top = `${event.clientY - box.top + 16}px`;
}

// The interval under the pointer, or one within two pixels of it.
function under(state, lane, ns) {
  const slack = (2 * (state.to - state.from)) / state.x.room;
  for (let i = firstVisible(lane, ns - slack); i < lane.start.length; i++) {
    if (lane.start[i] > ns + slack) return -1;
    if (lane.start[i] + lane.length[i] >= ns - slack) return i;
  }
  return -1;
}

function hoverLines(state, lane, i) {
  const name = lane.name[i] < 0 ? "" : state.data.names[lane.name[i]];
  const count = lane.count?.[i] ?? 1;
  const exact = `${lane.length[i].toLocaleString("en-US")} ns`;
  const length = lane.length[i] < 1000 ? exact : `${duration(lane.length[i])} (${exact})`;
  const label = state.data.roles[lane.role[i]][1];
  return [
    name || label,
    count > 1 ? `${label}, ${count.toLocaleString("en-US")} pieces merged, longest named` : label,
    `${lane.label}, ${length}`,
    `begins at ${duration(lane.start[i])}`,
  ];
}

function drawDrag(state, ns) {
  const context = state.canvas.getContext("2d");
  paint({ ...state }, penOf(cleared(context, state)), getComputedStyle(document.documentElement));
  const at = (value) => state.x.left + ((value - state.from) / (state.to - state.from)) * state.x.room;
  context.fillStyle = "rgba(120,130,140,0.3)";
  context.fillRect(at(state.drag), AXIS_HEIGHT, at(ns) - at(state.drag), state.height - AXIS_HEIGHT);
}

function cleared(context, state) {
  context.clearRect(0, 0, state.width, state.height);
  return context;
}

// -- saving -------------------------------------------------------------------------------

function saveTimeline(element, kind) {
  const state = timelineOf(element);
  const style = getComputedStyle(document.documentElement);
  const card = style.getPropertyValue("--card").trim();
  if (kind === "svg") {
    const text = svgOf(state, style, card);
    download(fileName(element, "svg"), `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`);
    return;
  }
  const copy = document.createElement("canvas");
  copy.width = state.canvas.width;
  copy.height = state.canvas.height;
  const context = copy.getContext("2d");
  context.fillStyle = card;
  context.fillRect(0, 0, copy.width, copy.height);
  context.drawImage(state.canvas, 0, 0);
  download(fileName(element, "png"), copy.toDataURL("image/png"));
}

function svgOf(state, style, card) {
  const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const parts = [];
  const anchors = { left: "start", right: "end", center: "middle" };
  const measure = state.canvas.getContext("2d");
  measure.font = `12px ${family}`;
  const n = (value) => Math.round(value * 100) / 100;
  paint(state, {
    rect: (x, y, w, h, fill) =>
      parts.push(`<rect x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${fill}"/>`),
    text: (x, y, words, fill, anchor, most) =>
      parts.push(
        `<text x="${n(x)}" y="${n(y)}" fill="${fill}" text-anchor="${anchors[anchor]}" dominant-baseline="middle">` +
          `${escape(most ? fitted(measure, words, most) : words)}</text>`,
      ),
  }, style);
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${state.width}" height="${state.height}" ` +
    `font-family="${escape(family).replaceAll('"', "'")}" font-size="12">` +
    `<rect width="100%" height="100%" fill="${card}"/>${parts.join("")}</svg>`
  );
}
