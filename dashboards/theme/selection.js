// One selection for all pages of a run: ranks, steps and a mesh axis. It lives in the address.
const choosers = new Map(); // section.run -> its choices and controls
const NOTHING = { ranks: null, steps: null, axis: null };
let selection = NOTHING;

function chosen(what) {
  return selection[what];
}

function isChosen(key) {
  const [rank, step, axis] = key;
  const meets = (set, value) => set === null || value === null || value === undefined || set.has(value);
  return (
    meets(selection.ranks, rank) &&
    meets(selection.steps, step) &&
    (selection.axis === null || axis === null || axis === undefined || axis === selection.axis)
  );
}

// "ranks=0-3&steps=12" -> a selection; what the run does not have is left out.
function readSelection(text, choices) {
  const given = new URLSearchParams(text);
  const numbers = (name, known) => {
    const wanted = readRanges(given.get(name) ?? "") ?? [];
    const set = new Set(wanted.filter((value) => known.includes(value)));
    return set.size ? set : null;
  };
  if (!choices) return NOTHING;
  const axis = given.get("axis");
  return {
    ranks: numbers("ranks", choices.ranks),
    steps: numbers("steps", choices.steps),
    axis: choices.axes.includes(axis) ? axis : null,
  };
}

function writeSelection(what) {
  const parts = [];
  if (what.ranks) parts.push(`ranks=${ranges(what.ranks)}`);
  if (what.steps) parts.push(`steps=${ranges(what.steps)}`);
  if (what.axis) parts.push(`axis=${encodeURIComponent(what.axis)}`);
  return parts.length ? `?${parts.join("&")}` : "";
}

// Choose anew, keeping the page: through the address, so that "back" undoes it.
function choose(change) {
  const page = location.hash.slice(1).split("?")[0] || currentPage().id;
  const next = `#${page}${writeSelection({ ...selection, ...change })}`;
  if (next !== location.hash) location.hash = next;
}

// A click adds to what is chosen, and takes away what was chosen before.
function toggle(what, value) {
  const set = new Set(selection[what] ?? []);
  if (!set.delete(value)) set.add(value);
  choose({ [what]: set.size ? set : null });
}

function makeChooser(run) {
  const data = run.querySelector("script[data-choices]");
  if (!data) return;
  const choices = JSON.parse(data.textContent);
  const form = run.querySelector("form.choose");
  const field = (name) => form.elements.namedItem(name);
  const one = choices.ranks.length < 2 && choices.steps.length < 2;
  if (one) return;
  form.hidden = false;
  field("ranks").closest("label").hidden = choices.ranks.length < 2;
  field("steps").closest("label").hidden = choices.steps.length < 2;
  field("axis").closest("label").hidden = choices.axes.length < 2;
  fill(form.querySelector("datalist.ranks"), [
    ...choices.sets.map(([name, ranks]) => [name, `ranks ${ranges(ranks)}`]),
    ...choices.ranks.slice(0, 64).map((rank) => [`${rank}`, `rank ${rank}`]),
  ]);
  fill(form.querySelector("datalist.steps"), choices.steps.map((step) => [`${step}`, `step ${step}`]));
  for (const axis of choices.axes) field("axis").append(new Option(axis, axis));
  choosers.set(run, { choices, form, field });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => readForm(run));
  form.querySelector(".clear").addEventListener("click", () => choose(NOTHING));
}

function fill(list, items) {
  for (const [value, label] of items) {
    const option = document.createElement("option");
    option.value = value;
    option.label = label;
    list.append(option);
  }
}

function readForm(run) {
  const { choices, field } = choosers.get(run);
  const read = (name, sets) => {
    const text = field(name).value.trim();
    const named = sets.find(([label]) => label === text);
    const wanted = named ? named[1] : readRanges(text.replace(/^(ranks?|steps?)\s+/, ""));
    const known = (wanted ?? []).filter((value) => choices[name].includes(value));
    const bad = text !== "" && !known.length;
    const word = name === "ranks" ? "rank" : "step";
    field(name).setCustomValidity(bad ? `No such ${word} here. Write for example 0-3,8.` : "");
    if (bad) field(name).reportValidity();
    return known.length ? new Set(known) : null;
  };
  const ranks = read("ranks", choices.sets);
  const steps = read("steps", []);
  choose({ ranks, steps, axis: field("axis").value || null });
}

// The controls say what is chosen, by its name where it has one.
function showSelection(run) {
  const chooser = choosers.get(run);
  if (!chooser) return;
  const { choices, field, form } = chooser;
  const ranks = selection.ranks;
  const named = ranks && choices.sets.find(([, set]) => set.length === ranks.size && set.every((r) => ranks.has(r)));
  field("ranks").value = named ? named[0] : ranks ? ranges(ranks) : "";
  field("steps").value = selection.steps ? ranges(selection.steps) : "";
  field("axis").value = selection.axis ?? "";
  const any = writeSelection(selection) !== "";
  form.querySelector(".clear").hidden = !any;
  form.querySelector(".said").textContent = any
    ? "Charts and tables show the selection; sentences speak of the whole run."
    : "";
}
