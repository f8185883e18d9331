// Numbers in words, as tracekit/report/format.py writes them: three significant digits.
function significant(value) {
  if (value === 0) return "0";
  const rounded = Number(value.toExponential(2));
  const size = Math.abs(rounded);
  if (size >= 100) return Math.round(value).toLocaleString("en-US");
  if (size < 0.001) return value > 0 ? "<0.001" : ">-0.001";
  return value.toFixed(2 - Math.floor(Math.log10(size)));
}

function quantity(value, suffix) {
  if (value === null || value === undefined || Number.isNaN(value)) return "—";
  return suffix ? `${significant(value)} ${suffix}` : significant(value);
}

// A duration in the unit that suits it alone, for a hover.
function duration(ns) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Number((Math.abs(ns) / size).toExponential(2)) >= 1) return `${significant(ns / size)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// A number as a table shows it, back to one that can be sorted; null for "—".
function readNumber(text) {
  if (text === "—") return null;
  const small = text.startsWith("<") ? 0.5 : text.startsWith(">-") ? -0.5 : 0;
  if (small) return small * 0.001;
  if (text === "∞") return Infinity;
  const value = Number(text.replaceAll(",", ""));
  return Number.isNaN(value) ? null : value;
}

// "0-3,8" from [0, 1, 2, 3, 8].
function ranges(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const parts = [];
  for (const n of sorted) {
    const last = parts.at(-1);
    if (last && last[1] === n - 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a},${b}` : `${a}-${b}`)).join(",");
}

// [0, 1, 2, 3, 8] from "0-3, 8"; null when it is something else.
function readRanges(text) {
  const found = [];
  for (const part of text.split(",").map((item) => item.trim()).filter(Boolean)) {
    const match = /^(-?\d+)(?:\s*[-–]\s*(\d+))?$/.exec(part);
    if (!match) return null;
    const first = Number(match[1]);
    const last = match[2] === undefined ? first : Number(match[2]);
    if (last - first > 100000) return null;
    for (let n = first; n <= last; n++) found.push(n);
  }
  return found;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

function over(how, values) {
  const known = values.filter((value) => value !== null);
  if (!known.length) return null;
  return how === "median" ? median(known) : known.reduce((a, b) => a + b, 0) / known.length;
}
