"use strict";
// Puts chosen cells side by side: values paired by seed, t intervals from the factors that came with the page, curves.
const source = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const made = (tag, more) => Object.assign(document.createElement(tag), more);
const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
const spread = (values) => Math.sqrt(values.reduce((sum, v) => sum + (v - mean(values)) ** 2, 0) / (values.length - 1));
const signed = (v) => (v < 0 ? "" : "+") + v.toFixed(2);
const DASHES = ["", "7 3", "2 2", "8 2 2 2", "12 3", "4 4", "1 3", "10 2 2 2 2 2"];
let cells = [];

function paired(a, b, comparisons) {
  const seeds = Object.keys(a.v).filter((seed) => seed in b.v);
  if (!seeds.length) return null;
  const differences = seeds.map((seed) => a.v[seed] - b.v[seed]);
  const told = seeds.length > 1 && spread(differences) > 1e-9;
  const row = source.factors[comparisons - 1];
  const half = told ? row[Math.min(seeds.length - 2, row.length - 1)] * spread(differences) : null;
  return { mean: mean(differences), n: seeds.length, half };
}

function row(entry, index) {
  const values = Object.values(entry.v);
  const other = index ? paired(entry, cells[0], cells.length - 1) : null;
  const head = made("th", { className: "first", scope: "row" });
  head.append(made("a", { textContent: entry.l, href: entry.h }), made("small", { textContent: entry.from }));
  const texts = [
    mean(values).toFixed(2) + (values.length > 1 ? ` \u00b1${spread(values).toFixed(2)}` : ""),
    `n=${values.length}` + (entry.d ? `, ${entry.d} diverged` : ""),
    index === 0 ? "" : other ? signed(other.mean) : "no common seed",
    other && other.half !== null ? `[${signed(other.mean - other.half)}, ${signed(other.mean + other.half)}]` : "",
    other ? String(other.n) : "",
  ];
  const remove = made("button", { type: "button", className: "plain", textContent: "Remove" });
  remove.setAttribute("aria-label", `Remove ${entry.l}`);
  remove.addEventListener("click", () => { cells.splice(index, 1); show(); });
  const last = made("td");
  last.append(remove);
  const found = made("tr");
  found.append(head, ...texts.map((textContent) => made("td", { textContent })), last);
  return found;
}

// Steps of 1, 2 or 5 times a power of ten.
function ticks(low, high) {
  const raw = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
  const first = Math.ceil(low / step) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, i) => Number((first + i * step).toPrecision(6)));
}

function plot() {
  const points = cells.flatMap((entry) => entry.c);
  byId("plot").replaceChildren();
  if (!points.length) return;
  const [xs, ys] = [points.map((p) => p[0]), points.map((p) => p[1])];
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1), Math.min(...ys) - 1, Math.min(100.5, Math.max(...ys) + 1)];
  const px = (v) => 46 + ((v - x0) / (x1 - x0)) * 404;
  const py = (v) => 206 - ((v - y0) / (y1 - y0)) * 196;
  const parts = ticks(y0, y1).map((v) => `<path class="grid" d="M46 ${py(v)}H452"/><text x="40" y="${py(v) + 4}" text-anchor="end">${v}</text>`);
  parts.push(...ticks(x0, x1).map((v) => `<text x="${px(v)}" y="222" text-anchor="middle">${v}</text>`), '<text x="250" y="237" text-anchor="middle">Round</text>');
  cells.forEach((entry, index) => {
    const dash = DASHES[cells.slice(0, index).filter((other) => other.k === entry.k).length];
    const d = entry.c.map(([a, b]) => `${px(a).toFixed(1)} ${py(b).toFixed(2)}`).join("L");
    if (d) parts.push(`<path class="l" stroke="var(--series-${Number(entry.k)})" stroke-dasharray="${dash}" d="M${d}"/>`);
  });
  const label = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  label.setAttribute("viewBox", "0 0 460 242");
  label.setAttribute("class", "chart");
  label.setAttribute("role", "img");
  label.setAttribute("aria-label", `Test accuracy over rounds of ${cells.map((entry) => entry.l).join(", ")}`);
  label.innerHTML = parts.join(""); // numbers alone
  byId("plot").append(made("figcaption", { textContent: "Test accuracy (%) over rounds, means over seeds" }), label);
}

function show() {
  byId("chosen").tBodies[0].replaceChildren(...cells.map(row));
  byId("said").textContent = cells.length < 2 ? "Choose at least two cells." : `${cells.length} cells.`;
  byId("add").disabled = cells.length >= source.most;
  plot();
  try { history.replaceState(null, "", `#${cells.map((entry) => entry.h).join(",")}`); } catch { /* no address */ }
}

function add(group, index) {
  const entry = source.groups[group]?.cells[index];
  if (!entry || cells.includes(entry) || cells.length >= source.most) return;
  entry.from = `${source.groups[group].item}, ${source.groups[group].profile}`;
  cells.push(entry);
}

// The cells whose pages the address names after its "#"; without any, the first two.
function start() {
  cells = [];
  for (const page of location.hash.slice(1).split(",")) {
    const group = source.groups.findIndex((one) => one.cells.some((entry) => entry.h === page));
    if (group >= 0) add(group, source.groups[group].cells.findIndex((entry) => entry.h === page));
  }
  if (!cells.length) { add(0, 0); add(0, 1); }
  show();
}

if (byId("group")) {
  const options = (list) => list.map((textContent, value) => made("option", { textContent, value }));
  const fill = () => byId("cell").replaceChildren(...options(source.groups[byId("group").value].cells.map((entry) => entry.l)));
  byId("group").append(...options(source.groups.map((one) => `${one.item} (${one.profile})`)));
  byId("group").addEventListener("change", fill);
  byId("add").addEventListener("click", () => { add(byId("group").value, byId("cell").value); show(); });
  byId("clear").addEventListener("click", () => { cells = []; show(); });
  addEventListener("hashchange", start);
  fill();
  start();
}
