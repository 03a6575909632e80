"use strict";
// Puts chosen cells side by side: values paired by seed, t intervals from the factors that came with the page, curves.
const source = JSON.parse(document.getElementById("data").textContent);
const chosen = [];
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DASHES = ["", "7 3", "2 2", "8 2 2 2", "12 3", "4 4", "1 3", "10 2 2 2 2 2"];

// A cell has its method's colour and marker; further cells of the same method differ by their dashes.
function look(index) {
  const [colour, marker] = chosen[index].k;
  const before = chosen.slice(0, index).filter((entry) => entry.k[0] === colour && entry.k[1] === marker).length;
  return { colour, shape: source.shapes[marker], dash: DASHES[before] };
}

function drawn(svg, name, attributes, text) {
  const made = svg.appendChild(document.createElementNS(SVG, name));
  for (const [key, v] of Object.entries(attributes)) if (v !== "") made.setAttribute(key, v);
  if (text !== undefined) made.textContent = text;
  return made;
}

function swatch(index) {
  const { colour, shape, dash } = look(index);
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, v] of Object.entries({ viewBox: "-14 -6 28 12", class: "key", "aria-hidden": "true" })) svg.setAttribute(key, v);
  drawn(svg, "path", { class: `l s${colour}`, "stroke-dasharray": dash, d: "M-14 0H14" });
  drawn(svg, "path", { class: `m s${colour}`, d: `M0 0${shape}` });
  return svg;
}

function option(text, value) {
  return Object.assign(document.createElement("option"), { textContent: text, value });
}

function mean(values) {
  return values.reduce((sum, v) => sum + v, 0) / values.length;
}

function spread(values) {
  const m = mean(values);
  return Math.sqrt(values.reduce((sum, v) => sum + (v - m) ** 2, 0) / (values.length - 1));
}

function paired(a, b, comparisons) {
  const seeds = Object.keys(a.v).filter((seed) => seed in b.v);
  if (!seeds.length) return null;
  const differences = seeds.map((seed) => a.v[seed] - b.v[seed]);
  const found = { mean: mean(differences), n: seeds.length, half: null };
  if (seeds.length > 1 && spread(differences) > 1e-9) {
    const row = source.factors[comparisons - 1];
    found.half = row[Math.min(seeds.length - 2, row.length - 1)] * spread(differences);
  }
  return found;
}

const signed = (v) => (v < 0 ? "" : "+") + v.toFixed(2);

function line(entry, index) {
  const values = Object.values(entry.v);
  const other = index ? paired(entry, chosen[0], chosen.length - 1) : null;
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.className = "first";
  head.scope = "row";
  const link = Object.assign(document.createElement("a"), { textContent: entry.l, href: entry.h });
  head.append(swatch(index), link, Object.assign(document.createElement("small"), { textContent: entry.from }));
  const texts = [
    mean(values).toFixed(2) + (values.length > 1 ? ` \u00b1${spread(values).toFixed(2)}` : ""),
    `n=${values.length}` + (entry.d ? `, ${entry.d} diverged` : ""),
    index === 0 ? "" : other ? signed(other.mean) : "no common seed",
    other && other.half !== null ? `[${signed(other.mean - other.half)}, ${signed(other.mean + other.half)}]` : "",
    other ? String(other.n) : "",
  ];
  const remove = Object.assign(document.createElement("button"), { type: "button", className: "plain", textContent: "Remove" });
  remove.setAttribute("aria-label", `Remove ${entry.l}`);
  remove.addEventListener("click", () => { chosen.splice(index, 1); show(); });
  row.append(head, ...texts.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
  row.append(document.createElement("td"));
  row.lastChild.append(remove);
  return row;
}

function plot() {
  const points = chosen.flatMap((entry) => entry.c);
  byId("plot").replaceChildren();
  if (!points.length) return;
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const pad = 0.06 * (high - low) || 1;
  const x = { from: Math.min(...xs), to: Math.max(...xs, Math.min(...xs) + 1) };
  const y = { from: low - pad, to: Math.min(101, high + pad) };
  const px = (v) => 46 + ((v - x.from) / (x.to - x.from)) * 404;
  const py = (v) => 206 - ((v - y.from) / (y.to - y.from)) * 196;
  const svg = document.createElementNS(SVG, "svg");
  const put = (name, attributes, text) => drawn(svg, name, attributes, text);
  svg.setAttribute("viewBox", "0 0 460 230");
  svg.setAttribute("class", "chart");
  svg.setAttribute("role", "img");
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-label", `Test accuracy over rounds of ${chosen.map((entry) => entry.l).join(", ")}`);
  svg.dataset.x = JSON.stringify([x.from - 46 * (x.to - x.from) / 404, (x.to - x.from) / 404, 0]);
  svg.dataset.y = JSON.stringify([y.from + 206 * (y.to - y.from) / 196, -(y.to - y.from) / 196, 0]);
  for (let i = 0; i <= 4; i += 1) {
    const at = y.from + (i / 4) * (y.to - y.from);
    put("path", { class: "grid", d: `M46 ${py(at)}H452` });
    put("text", { x: 40, y: py(at), dy: ".32em", "text-anchor": "end" }, at.toFixed(high - low > 8 ? 0 : 1));
    const round = x.from + (i / 4) * (x.to - x.from);
    put("text", { x: px(round), y: 223, "text-anchor": "middle" }, String(Math.round(round)));
  }
  chosen.forEach((entry, index) => {
    if (!entry.c.length) return;
    const path = entry.c.map(([a, b]) => `${px(a).toFixed(1)} ${py(b).toFixed(2)}`).join("L");
    const { colour, shape, dash } = look(index);
    put("path", { class: `l s${colour}`, "data-n": entry.l, d: `M${path}`, "stroke-dasharray": dash });
    const step = Math.max(1, Math.floor(entry.c.length / 5));
    const at = entry.c.filter((_, i) => i % step === index % step);
    put("path", { class: `m s${colour}`, d: at.map(([a, b]) => `M${px(a).toFixed(1)} ${py(b).toFixed(2)}${shape}`).join("") });
  });
  const title = Object.assign(document.createElement("figcaption"), { textContent: "Test accuracy (%) over rounds, means over seeds" });
  byId("plot").append(title, svg);
  readout(svg);
}

function show() {
  byId("chosen").tBodies[0].replaceChildren(...chosen.map(line));
  byId("said").textContent = chosen.length < 2 ? "Choose at least two cells." : `${chosen.length} cells, ${chosen.length - 1} comparison${chosen.length > 2 ? "s" : ""}.`;
  byId("add").disabled = chosen.length >= source.most;
  plot();
  try { history.replaceState(null, "", `#${chosen.map((entry) => entry.h).join(",")}`); } catch { /* a choice without an address */ }
}

function fill() {
  const group = source.groups[byId("group").value];
  byId("cell").replaceChildren(...group.cells.map((entry, index) => option(entry.l, index)));
}

function add(group, index) {
  const entry = source.groups[group].cells[index];
  if (!entry || chosen.includes(entry) || chosen.length >= source.most) return;
  entry.from = `${source.groups[group].item}, ${source.groups[group].profile}`;
  chosen.push(entry);
}

// What the address names after its "#", the pages of cells; without any, the first two cells.
function start() {
  for (const page of location.hash.slice(1).split(",")) {
    const group = source.groups.findIndex((one) => one.cells.some((entry) => entry.h === page));
    if (group >= 0) add(group, source.groups[group].cells.findIndex((entry) => entry.h === page));
  }
  if (!chosen.length) { add(0, 0); add(0, 1); }
  show();
}

if (byId("group")) {
  byId("group").append(...source.groups.map((group, index) => option(`${group.item} (${group.profile})`, index)));
  byId("group").addEventListener("change", fill);
  byId("add").addEventListener("click", () => { add(byId("group").value, byId("cell").value); show(); });
  byId("clear").addEventListener("click", () => { chosen.length = 0; show(); });
  fill();
  addEventListener("hashchange", () => { chosen.length = 0; start(); });
  start();
}
