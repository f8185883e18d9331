// Shows one page at a time and draws its charts. All numbers, words and units come ready-made.
"use strict";
(() => {
  const runs = [...document.querySelectorAll("section.run")];
  const drawn = new Map(); // chart element -> its figure
  const layout = {
    margin: { l: 8, r: 8, t: 4, b: 4 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "var(--muted)" },
    hoverlabel: {
      align: "left",
      bgcolor: "var(--card)",
      bordercolor: "var(--muted)",
      font: { color: "var(--ink)", size: 12, family: getComputedStyle(document.body).fontFamily },
    },
  };
  const axis = { gridcolor: "var(--line)", zerolinecolor: "var(--faint)", linecolor: "var(--line)" };
  const config = { displayModeBar: false, responsive: true };

  let loading = null;
  function loadPlotly() {
    loading ??= unpackPlotly();
    return loading;
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

  // "var(--role)" -> the colour it has in the present theme.
  function themed(value, style) {
    if (typeof value === "string") {
      return value.startsWith("var(--") ? style.getPropertyValue(value.slice(4, -1)).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => themed(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, style)]));
    }
    return value;
  }

  function drawChart(plotly, element, figure) {
    const style = getComputedStyle(document.documentElement);
    const own = figure.layout;
    const full = {
      ...layout,
      ...own,
      height: figure.height,
      xaxis: { ...axis, ...own.xaxis },
      yaxis: { ...axis, ...own.yaxis },
    };
    drawn.set(element, figure);
    return plotly.react(element, themed(figure.data, style), themed(full, style), config);
  }

  async function draw(root) {
    const waiting = [...root.querySelectorAll(".chart")].filter(
      (element) => !drawn.has(element) && element.getClientRects().length,
    );
    if (!waiting.length) return;
    try {
      const plotly = await loadPlotly();
      for (const element of waiting) {
        const json = document.querySelector(`script[data-chart="${element.id}"]`).textContent;
        await drawChart(plotly, element, JSON.parse(json));
      }
    } catch (error) {
      for (const element of waiting) {
        element.classList.add("failed");
        element.textContent = `This browser cannot draw the chart (${error.message}); the tables have its numbers.`;
      }
    }
  }

  function pagesOf(run) {
    return [...run.querySelectorAll("article.page")];
  }

  // "#run2-overlap" names a page; "#overlap" names it in the run now shown.
  function find(name) {
    const exact = document.getElementById(name);
    if (exact?.matches("article.page")) return exact;
    const run = runs.find((item) => !item.hidden) ?? runs[0];
    const named = (item) => pagesOf(item).find((page) => page.dataset.page === name);
    return named(run) ?? runs.map(named).find(Boolean) ?? null;
  }

  function show(page, focus) {
    const run = page.closest("section.run");
    for (const item of runs) item.hidden = item !== run;
    for (const item of pagesOf(run)) item.hidden = item !== page;
    for (const link of document.querySelectorAll("nav a")) {
      const here = link.dataset.run ? link.dataset.run === run.id : link.hash === `#${page.id}`;
      if (here) link.setAttribute("aria-current", link.dataset.run ? "true" : "page");
      else link.removeAttribute("aria-current");
    }
    // Another run opens at the page that is being read.
    for (const link of document.querySelectorAll("nav.runs a")) {
      const target = document.getElementById(link.dataset.run);
      const twin = pagesOf(target).find((item) => item.dataset.page === page.dataset.page);
      if (twin) link.hash = twin.id;
    }
    window.scrollTo(0, 0);
    if (focus) page.focus({ preventScroll: true });
    draw(page);
  }

  function route(focus) {
    let name = "";
    try {
      name = decodeURIComponent(location.hash.slice(1));
    } catch {
      // A malformed address opens the first page.
    }
    show(find(name) ?? pagesOf(runs[0])[0], focus);
  }

  async function copy(button) {
    const text = button.closest(".card").querySelector("pre");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // no clipboard here: ready for Ctrl+C
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  }

  function redraw() {
    for (const [element, figure] of drawn) {
      if (window.Plotly && element.getClientRects().length) drawChart(window.Plotly, element, figure);
      else drawn.delete(element); // drawn anew when it is shown
    }
  }

  window.addEventListener("hashchange", () => route(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  document.addEventListener("toggle", (event) => event.target.open && draw(event.target), true);
  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => copy(button));
  }
  for (const chart of document.querySelectorAll(".chart")) {
    chart.style.minHeight = `${chart.dataset.height}px`; // nothing jumps when it is drawn
  }
  if (runs.length) route(false);
})();
