// Shows one page at a time, and keeps address, selection, keyboard and paper in step.
const runs = [...document.querySelectorAll("section.run")];

function pagesOf(run) {
  return [...run.querySelectorAll("article.page")];
}

function currentRun() {
  return runs.find((item) => !item.hidden) ?? runs[0];
}

function currentPage() {
  const pages = pagesOf(currentRun());
  return pages.find((item) => !item.hidden) ?? pages[0];
}

// "#run2-overlap" names a page; "#overlap" names it in the run now shown.
function find(name) {
  const exact = document.getElementById(name);
  if (exact?.matches("article.page")) return exact;
  const named = (item) => pagesOf(item).find((page) => page.dataset.page === name);
  return named(currentRun()) ?? runs.map(named).find(Boolean) ?? null;
}

function show(page, focus) {
  const run = page.closest("section.run");
  const turned = page.hidden || run.hidden;
  for (const item of runs) item.hidden = item !== run;
  for (const item of pagesOf(run)) item.hidden = item !== page;
  for (const link of document.querySelectorAll("nav a")) {
    const id = link.hash.slice(1).split("?")[0];
    const here = link.dataset.run ? link.dataset.run === run.id : id === page.id;
    if (here) link.setAttribute("aria-current", link.dataset.run ? "true" : "page");
    else link.removeAttribute("aria-current");
  }
  run.querySelector("nav.pages a[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  aim(run, page);
  showSelection(run);
  for (const table of page.querySelectorAll("table")) filterTable(table);
  refresh();
  if (turned || !focus) {
    window.scrollTo(0, 0); // not to the page's own place, below the head
    if (focus) page.focus({ preventScroll: true });
  }
  draw(page);
}

// Links to pages of this run keep the selection; another run opens at the same page.
function aim(run, page) {
  const kept = writeSelection(selection);
  for (const link of run.querySelectorAll("nav.pages a")) link.hash = link.hash.split("?")[0] + kept;
  for (const link of document.querySelectorAll("nav.runs a")) {
    const target = document.getElementById(link.dataset.run);
    const twin = pagesOf(target).find((item) => item.dataset.page === page.dataset.page);
    if (twin) link.hash = twin.id;
  }
}

function route(focus) {
  let text = "";
  try {
    text = decodeURIComponent(location.hash.slice(1));
  } catch {
    // A malformed address opens the first page.
  }
  const [name, query = ""] = text.split("?");
  const page = find(name) ?? pagesOf(runs[0])[0];
  selection = readSelection(query, choosers.get(page.closest("section.run"))?.choices);
  show(page, focus);
}

// -- drawing ---------------------------------------------------------------------------

function figureOf(element) {
  const json = document.querySelector(`script[data-chart="${element.id}"]`).textContent;
  return JSON.parse(json);
}

async function draw(root) {
  const visible = (element) => element.getClientRects().length;
  for (const element of root.querySelectorAll(".timeline")) if (visible(element)) drawTimeline(element);
  const waiting = [...root.querySelectorAll(".chart")].filter((e) => !drawn.has(e) && visible(e));
  if (!waiting.length) return;
  try {
    const plotly = await loadPlotly();
    for (const element of waiting) {
      if (!drawn.has(element)) await drawChart(plotly, element, figureOf(element));
    }
    performance.mark("tracekit-drawn"); // for the tests of speed
  } catch (error) {
    for (const element of waiting) {
      element.classList.add("failed");
      element.textContent = `This chart cannot be drawn here (${error.message}); the tables have its numbers.`;
    }
  }
}

// What is drawn is drawn again; what is out of sight, when it is shown.
function refresh() {
  if (!window.Plotly) return;
  for (const [element, figure] of drawn) {
    if (element.getClientRects().length) drawChart(window.Plotly, element, figure);
    else drawn.delete(element);
  }
}

function redraw() {
  refresh();
  draw(currentPage());
}

// -- paper -----------------------------------------------------------------------------

const PAPER_WIDTH = 690; // A4 within the margins of the print style

// Every page is printed, so every chart is drawn; printing does not wait for promises.
function beforePrint() {
  document.documentElement.classList.add("printing");
  const width = (element) => Math.min(PAPER_WIDTH, Math.floor(element.getBoundingClientRect().width));
  for (const element of document.querySelectorAll(".timeline")) drawTimeline(element, width(element));
  if (!window.Plotly) return;
  for (const element of document.querySelectorAll(".chart")) {
    if (!element.getClientRects().length) continue;
    drawChart(window.Plotly, element, drawn.get(element) ?? figureOf(element), width(element));
  }
}

function afterPrint() {
  document.documentElement.classList.remove("printing");
  redraw();
}

// -- keyboard --------------------------------------------------------------------------

function turn(by) {
  const pages = pagesOf(currentRun());
  const next = pages[pages.indexOf(currentPage()) + by];
  if (next) location.hash = next.id + writeSelection(selection);
}

function typed(event) {
  const field = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape" && field) event.target.blur();
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  const names = { r: "ranks", s: "steps", a: "axis" };
  const help = document.getElementById("help");
  const control = choosers.get(currentRun())?.field(names[event.key] ?? "");
  if (event.key === "]") turn(1);
  else if (event.key === "[") turn(-1);
  else if (event.key === "c") choose(NOTHING);
  else if (event.key === "?") help.open ? help.close() : help.showModal();
  else if (control && control.getClientRects().length) {
    event.preventDefault();
    control.focus();
    control.select?.();
  }
}

// -- start -----------------------------------------------------------------------------

window.addEventListener("hashchange", () => route(true));
window.addEventListener("beforeprint", beforePrint);
window.addEventListener("afterprint", afterPrint);
document.addEventListener("keydown", typed);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("toggle", (event) => event.target.open && draw(event.target), true);
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => copyText(button, button.closest(".copy-head").nextElementSibling.textContent));
}
for (const button of document.querySelectorAll("button.help")) {
  button.addEventListener("click", () => document.getElementById("help").showModal());
}
for (const chart of document.querySelectorAll(".chart, .timeline")) {
  chart.style.minHeight = `${chart.dataset.height}px`; // nothing jumps when it is drawn
}
for (const chart of document.querySelectorAll(".chart")) addTools(chart, saveChart, ["png", "svg"]);
for (const chart of document.querySelectorAll(".timeline")) addTools(chart, saveTimeline, ["png", "svg"]);
for (const table of document.querySelectorAll("table")) makeTable(table);
for (const run of runs) makeChooser(run);
if (runs.length) route(false);
