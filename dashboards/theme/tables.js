// Tables sort by their heads, filter by words, follow the selection and are copied as CSV.
const MANY_ROWS = 8;

function makeTable(table) {
  const head = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  table.whole = [...body.rows];
  for (const [place, cell] of head.entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...cell.childNodes);
    cell.append(button);
    button.addEventListener("click", () => sortTable(table, place, cell));
  }
  addTableTools(table);
}

function addTableTools(table) {
  const region = table.closest(".scroll");
  const tools = document.createElement("span");
  tools.className = "tools";
  if (table.whole.length > MANY_ROWS) {
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "Filter rows";
    filter.setAttribute("aria-label", "Filter the rows of this table");
    filter.addEventListener("input", () => filterTable(table));
    table.filter = filter;
    tools.append(filter);
  }
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "csv";
  copy.textContent = "Copy CSV";
  copy.addEventListener("click", () => copyText(copy, tableCsv(table)));
  tools.append(copy);
  const title = region.previousElementSibling;
  const head = title?.matches("h3") ? headOf(title) : document.createElement("div");
  head.className = "head";
  head.append(tools);
  region.before(head);
  table.note = document.createElement("p");
  table.note.className = "caption";
  table.note.hidden = true;
  region.after(table.note);
}

function sortTable(table, place, cell) {
  const order = { none: "descending", descending: "ascending", ascending: "none" };
  const numeric = cell.classList.contains("number");
  let now = order[cell.ariaSort ?? "none"];
  if (!numeric) now = { none: "ascending", ascending: "descending", descending: "none" }[cell.ariaSort ?? "none"];
  for (const other of table.tHead.rows[0].cells) other.ariaSort = null;
  cell.ariaSort = now === "none" ? null : now;
  const sign = now === "ascending" ? 1 : -1;
  const rows = now === "none" ? table.whole : sorted(table.whole, place, numeric, sign);
  table.tBodies[0].append(...rows);
}

function sorted(rows, place, numeric, sign) {
  const words = new Intl.Collator("en", { numeric: true });
  const key = (row) => (numeric ? readQuantity(cellText(row.cells[place])) : cellText(row.cells[place]));
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null); // unknown ones last, always
    return sign * (numeric ? a - b : words.compare(a, b));
  };
  return rows.map((row) => [key(row), row]).sort((a, b) => compare(a[0], b[0])).map((pair) => pair[1]);
}

// A cell of the findings carries its unit: "4.60 ms".
function readQuantity(text) {
  const [number, unit] = text.split(/\s/);
  const value = readNumber(number);
  const size = { s: 1e9, ms: 1e6, "µs": 1e3 }[unit] ?? 1;
  return value === null ? null : value * size;
}

// Of a name that is folded, the whole.
function cellText(cell) {
  const long = cell.querySelector("details.long > bdi");
  return (long ?? cell).textContent.trim().replace(/\s+/g, " ");
}

function filterTable(table) {
  const words = (table.filter?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of table.whole) {
    const { rank, step, axis } = row.dataset;
    const key = [rank === undefined ? null : +rank, step === undefined ? null : +step, axis ?? null];
    const text = words.length ? cellText(row).toLowerCase() : "";
    row.hidden = !isChosen(key) || !words.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  const all = table.whole.length;
  table.note.hidden = shown === all;
  table.note.textContent = shown
    ? `${shown} of ${all} rows shown.`
    : "No row of this table belongs to the selection; every row is in the JSON and CSV output.";
}

function tableCsv(table) {
  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const safe = (text) => (/^[=+@\t]|^-(?![\d.])/.test(text) ? `'${text}` : text); // no formula in a spreadsheet
  const line = (cells) => [...cells].map((cell) => quote(safe(csvText(cell)))).join(",");
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  return [line(table.tHead.rows[0].cells), ...rows.map((row) => line(row.cells))].join("\n") + "\n";
}

function csvText(cell) {
  const unit = cell.querySelector(".unit");
  if (unit) {
    const words = cellText(cell);
    return `${words.slice(0, words.length - unit.textContent.length).trim()} (${unit.textContent.trim()})`;
  }
  const text = cellText(cell);
  if (text === "—") return "";
  return cell.classList.contains("number") ? text.replaceAll(",", "") : text;
}

async function copyText(button, text) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = selectText(text) ? "Copied" : "Not copied";
  }
  setTimeout(() => (button.textContent = before), 2000);
}

// Where there is no clipboard, as in a file opened by an old browser.
function selectText(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "offscreen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
