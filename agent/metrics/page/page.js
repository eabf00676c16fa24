// Draws /live.json every two seconds. What is null there is unknown, and drawn as such: never 0, never the last value.
"use strict";

const PERIOD_MS = 2000;
const OLD_AFTER_MS = 8000;
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const mix = (from, to, part) => `color-mix(in oklab, var(${to}) ${(100 * part).toFixed(1)}%, var(${from}))`;

// value 0 to 1
function heat(value) {
  return value < 0.5 ? mix("--heat-low", "--heat-mid", 2 * value) : mix("--heat-mid", "--heat-high", 2 * value - 1);
}

// value relative to the mean, from half of it to twice
function load(value) {
  const steps = Math.max(-1, Math.min(1, Math.log2(Math.max(value, 1e-9))));
  return steps < 0 ? mix("--load-mean", "--load-low", -steps) : mix("--load-mean", "--load-high", steps);
}

const percent = (value) => (value === null ? "–" : `${Math.round(100 * value)} %`);
const gib = (value) => (value === null ? "–" : (value / 2 ** 30).toFixed(0));
const number = (value, unit) => (value === null ? "–" : `${Math.round(value)} ${unit}`);
const times = (value) => (value === null ? "–" : value.toFixed(2));

// One row of cells; an unknown one is left out, and the strip's hatching shows.
function strip(cells, colour, tell) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "strip");
  svg.setAttribute("viewBox", `0 0 ${cells.length} 1`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", tell.row);
  cells.forEach((value, x) => {
    if (value === null) return;
    const cell = document.createElementNS(SVG, "rect");
    cell.setAttribute("x", x);
    cell.setAttribute("width", 1);
    cell.setAttribute("height", 1);
    cell.style.fill = colour(value);
    const title = document.createElementNS(SVG, "title");
    title.textContent = tell.cell(x, value);
    cell.append(title);
    svg.append(cell);
  });
  return svg;
}

function facts(live) {
  const host = live.host;
  const list = [];
  const sees = host !== null;
  list.push(["mode", sees && host.mode !== null ? host.mode : "–", ""]);
  list.push(["release", sees && host.release !== null ? host.release : "–", ""]);
  if (sees && host.trial) list.push(["change", "on trial", "bad"]);
  const up = sees && host.ranks_up !== null ? host.ranks_up : "?";
  const expected = sees && host.ranks_expected !== null ? host.ranks_expected : "?";
  list.push(["ranks", `${up} of ${expected}`, up === expected ? "good" : "bad"]);
  if (live.gpus.failure !== null) list.push(["NVML", live.gpus.failure, "bad"]);
  if (!sees || !host.readable) list.push(["files", "not readable", "bad"]);
  at("facts").replaceChildren(...list.map(([name, text, mood]) => {
    const pair = element("div");
    pair.append(element("dt", "", name), element("dd", mood, text));
    return pair;
  }));
}

function gpus(live) {
  const board = [element("div", "head"), element("div", "head")];
  for (const head of ["now", "tensor", "GiB", "power", "°C"]) board.push(element("div", `head number${head === "now" ? "" : " extra"}`, head));
  for (const gpu of live.gpus.rows) {
    const fine = gpu.state === "ok";
    const name = `GPU ${gpu.gpu}`;
    const label = element("div", "name", name);
    label.title = [gpu.name, gpu.uuid].filter(Boolean).join(", ");
    const seconds = (x) => (gpu.history.length - 1 - x) * live.gpus.step_seconds;
    board.push(label, strip(gpu.history, heat, {
      row: `${name}: ${fine ? percent(gpu.utilization) : gpu.state}`,
      cell: (x, value) => `${name}, ${seconds(x)} s ago: ${percent(value)}`,
    }));
    board.push(fine ? element("div", "number", percent(gpu.utilization)) : element("div", "number bad", gpu.state === null ? "?" : gpu.state.replaceAll("_", " ")));
    board.push(element("div", "number extra", percent(gpu.tensor_active)),
      element("div", "number extra", gpu.memory_used_bytes === null ? "–" : `${gib(gpu.memory_used_bytes)} / ${gib(gpu.memory_total_bytes)}`),
      element("div", "number extra", number(gpu.power_watts, "W")),
      element("div", "number extra", gpu.temperature_celsius === null ? "–" : Math.round(gpu.temperature_celsius)));
  }
  if (live.gpus.rows.length === 0) board.push(element("div", "name", "no GPU is seen"));
  else {
    const span = live.gpus.rows[0].history.length * live.gpus.step_seconds / 60;
    const axis = element("div", "axis");
    axis.append(element("span", "", `${span} minutes ago`), element("span", "", "now"));
    board.push(element("div"), axis);
  }
  at("gpus").replaceChildren(...board);
}

function moeNote(moe) {
  if (moe === null) return "No expert was chosen in the last 30 seconds, or no rank observes routing.";
  const layout = `${moe.experts} experts, top ${moe.top_k}, EP ${moe.ep_size} on ${moe.tp_size} ranks. `;
  const shown = moe.what_if
    ? `Every rank holds a slice of each expert, so load is even by construction; shown is what EP ${moe.shown_ep_size} would make of the same routing. `
    : "";
  if (moe.peak === null) return `${layout}${shown}Nothing was routed in the last 30 seconds.`;
  const tokens = moe.tokens_per_step === null ? "" : ` at ${moe.tokens_per_step.toFixed(1)} tokens a step`;
  const against = (value, expected) => `${times(value)} of the mean, where uniform routing would give ${times(expected)}`;
  const steps = moe.step_peak == null ? "" : `Step by step the fullest rank has ${against(moe.step_peak, moe.expected_step_peak)}. `;
  return `${layout}${shown}Last 30 seconds${tokens}. ${steps}All steps together, as drawn here, it has ${against(moe.peak, moe.expected_peak)}.`;
}

function moe(live) {
  const picture = live.moe;
  at("moe-note").textContent = moeNote(picture);
  at("moe-legend").hidden = picture === null;
  if (picture === null || picture.layers.length === 0) return at("moe").replaceChildren();
  const board = [element("div", "head"), element("div", "head"), element("div", "head number", "of the mean")];
  for (let rank = 0; rank < picture.shown_ep_size; ++rank) {
    const cells = picture.load.map((layer) => layer[rank]);
    const known = cells.filter((value) => value !== null);
    const mean = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
    const name = `${picture.what_if ? "part" : "rank"} ${rank}`;
    board.push(element("div", "name", name), strip(cells, load, {
      row: `${name}: ${times(mean)} of the mean`,
      cell: (x, value) => `${name}, layer ${picture.layers[x]}: ${times(value)} of the layer's mean`,
    }), element("div", "number", times(mean)));
  }
  const axis = element("div", "axis");
  axis.append(element("span", "", `layer ${picture.layers[0]}`), element("span", "", `layer ${picture.layers.at(-1)}`));
  board.push(element("div"), axis, element("div"));
  return at("moe").replaceChildren(...board);
}

function ranks(live) {
  const heads = [["rank"], ["state", "text"], ["mode", "text"], ["by kdtree"], ["by the engine"], ["handed back"], ["compared"], ["over tolerance"], ["largest, ULP"]];
  const row = element("tr");
  row.append(...heads.map(([text, kind]) => element("th", kind, text)));
  const rows = [row];
  for (const rank of live.ranks ?? []) {
    const line = element("tr");
    const state = element("td", rank.state === "refused" ? "text bad" : "text", rank.state);
    if (rank.reason !== null) state.title = rank.reason;
    line.append(element("td", "", rank.rank), state, element("td", "text", rank.mode ?? "–"));
    for (const count of [rank.calls_kernel, rank.calls_engine, rank.handed_back, rank.compares]) line.append(element("td", "", count.toLocaleString("en")));
    line.append(element("td", rank.mismatches ? "bad" : "", rank.mismatches), element("td", "", rank.max_ulp === null ? "–" : rank.max_ulp));
    rows.push(line);
  }
  if (!live.ranks?.length) {
    const none = element("td", "text", live.ranks === null ? "unknown" : "no rank reports");
    none.colSpan = heads.length;
    const line = element("tr");
    line.append(none);
    rows.push(line);
  }
  at("ranks").replaceChildren(...rows);
}

let seen = 0;

function blind() {
  at("clock").textContent = seen ? `no answer since ${new Date(seen).toLocaleTimeString()}` : "no answer from the agent";
  at("clock").className = "bad";
  for (const id of ["facts", "gpus", "moe", "ranks"]) at(id).replaceChildren();
  at("moe-note").textContent = "";
}

async function turn() {
  try {
    const answer = await fetch("live.json", { signal: AbortSignal.timeout(PERIOD_MS * 2) });
    if (!answer.ok) throw new Error(answer.statusText);
    const live = await answer.json();
    facts(live);
    gpus(live);
    moe(live);
    ranks(live);
    seen = Date.now();
    at("clock").textContent = `as of ${new Date(live.time * 1000).toLocaleTimeString()}`;
    at("clock").className = "";
    at("version").textContent = `kdtree-agent ${live.version}`;
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
  } catch {
    if (Date.now() - seen > OLD_AFTER_MS) blind();
  }
  setTimeout(turn, PERIOD_MS);
}

at("host").textContent = location.host;
turn();
