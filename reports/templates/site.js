"use strict";
// Filters entries, sorts tables by a clicked heading, and reads values off curves. Without it the pages are complete.
const filters = [...document.querySelectorAll("[data-filter], [data-filter-key]")];
const entries = [...document.querySelectorAll("[data-entry]")];

function matches(entry) {
  return filters.every((input) => {
    const key = input.dataset.filterKey;
    if (!key) return entry.textContent.toLowerCase().includes(input.value.trim().toLowerCase());
    const found = input.dataset.part ? JSON.parse(entry.dataset[key])[input.dataset.part] ?? "" : entry.dataset[key];
    if (input.dataset.part) return !input.value || found === input.value;
    return !input.value || (found.startsWith("[") ? JSON.parse(found).includes(input.value) : found === input.value);
  });
}

function refresh() {
  let shown = 0;
  for (const entry of entries) {
    entry.hidden = !matches(entry);
    shown += entry.hidden ? 0 : 1;
  }
  for (const count of document.querySelectorAll("[data-count]")) {
    count.textContent = shown === entries.length ? "" : `${shown} of ${entries.length}`;
  }
}

function sortBy(table, column, button) {
  const down = button.dataset.order !== "down";
  for (const other of table.querySelectorAll("th button")) {
    delete other.dataset.order;
    other.closest("th").removeAttribute("aria-sort");
  }
  button.dataset.order = down ? "down" : "up";
  button.closest("th").setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0];
  const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const rows = [...body.rows].sort((a, b) => key(a).localeCompare(key(b), "en", { numeric: true }));
  const number = (row) => Number.parseFloat(key(row));
  if (rows.every((row) => !Number.isNaN(number(row)))) rows.sort((a, b) => number(a) - number(b));
  body.append(...(down ? rows.reverse() : rows));
}

for (const input of filters) input.addEventListener("input", refresh);
for (const table of document.querySelectorAll("table[data-sort]")) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const button = cell.querySelector("button");
    button?.addEventListener("click", () => sortBy(table, column, button));
  });
}

// A path's points in chart coordinates; data-x and data-y hold [value at place 0, value a unit, whether a logarithm].
const places = (path) => path.getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number));
const value = ([start, unit, log], place) => (log ? 10 ** (start + unit * place) : start + unit * place);
const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
tip.setAttribute("role", "status");
document.body.append(tip);

function readout(chart) {
  const [x, y] = [JSON.parse(chart.dataset.x), JSON.parse(chart.dataset.y)];
  const lines = [...chart.querySelectorAll("path[data-n]")].filter((path) => path.getAttribute("d"));
  const points = lines.map(places);
  const stops = [...new Set(points.flat().map((point) => point[0]))].sort((a, b) => a - b);
  const ruler = chart.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
  ruler.setAttribute("class", "ruler");
  let at = stops.length - 1;

  function show(index) {
    at = Math.max(0, Math.min(stops.length - 1, index));
    const box = chart.getBoundingClientRect();
    const scale = box.width / chart.viewBox.baseVal.width;
    ruler.setAttribute("d", `M${stops[at]} 8V206`);
    const rows = points.flatMap((line, i) => {
      const point = line.find((p) => Math.abs(p[0] - stops[at]) < 0.06);
      return point ? [{ label: lines[i].dataset.n, y: point[1], look: lines[i].classList[lines[i].classList.length - 1] }] : [];
    });
    rows.sort((a, b) => a.y - b.y);
    const head = Object.assign(document.createElement("b"), { textContent: `Round ${Math.round(value(x, stops[at]))}` });
    const list = rows.slice(0, 14).map((row) => {
      const line = Object.assign(document.createElement("span"), { className: row.look });
      line.textContent = `${row.label}: ${Number(value(y, row.y).toPrecision(4))}`;
      return line;
    });
    tip.replaceChildren(head, ...list);
    tip.hidden = false;
    const left = window.scrollX + box.left + stops[at] * scale;
    const flip = left + tip.offsetWidth + 24 > window.scrollX + document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, flip ? left - tip.offsetWidth - 12 : left + 12)}px`;
    tip.style.top = `${window.scrollY + box.top + 10}px`;
  }

  function hide() {
    tip.hidden = true;
    ruler.removeAttribute("d");
  }

  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    show(stops.reduce((best, stop, i) => (Math.abs(stop - place) < Math.abs(stops[best] - place) ? i : best), 0));
  });
  chart.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -stops.length, End: stops.length }[event.key];
    if (event.key === "Escape") hide();
    if (!step) return;
    event.preventDefault();
    show(tip.hidden ? at : at + step);
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
}

for (const chart of document.querySelectorAll("svg.chart[data-x]")) readout(chart);

// The switch shows what is seen. A choice that is the system's own is forgotten, so that the page follows it again.
const system = matchMedia("(prefers-color-scheme: dark)");
const theme = document.getElementById("theme");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

function keep(choice) {
  try {
    if (choice) localStorage.setItem(KEY, choice);
    else localStorage.removeItem(KEY);
  } catch { /* this page's alone */ }
}

function showTheme() { theme.setAttribute("aria-checked", String(isDark())); }

theme.addEventListener("click", () => {
  const wanted = isDark() ? "light" : "dark";
  const own = (wanted === "dark") === system.matches;
  if (own) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
  keep(own ? null : wanted);
  showTheme();
});
system.addEventListener("change", showTheme);
addEventListener("storage", (event) => {
  if (event.key !== KEY) return;
  if (event.newValue) document.documentElement.dataset.theme = event.newValue;
  else delete document.documentElement.dataset.theme;
  showTheme();
});
theme.hidden = false;
showTheme();
