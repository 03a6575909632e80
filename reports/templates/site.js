"use strict";
// Colours, lists to filter, tables to sort, values read off figures. Without it the pages are complete.

// Light or dark: as the visitor chose, else as the system has it. Runs before anything is painted.
const KEY = "fssl-theme";
const system = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const isDark = () => root.dataset.theme === "dark";

function chosen() {
  try { return localStorage.getItem(KEY); } catch { return null; } // nothing may be stored
}

function showTheme() {
  const wanted = chosen() ?? (system.matches ? "dark" : "light");
  root.dataset.theme = wanted === "dark" ? "dark" : "light";
  document.getElementById("theme")?.setAttribute("aria-checked", String(isDark()));
}

showTheme();

// A choice that is the system's own is forgotten, so that the page follows the system again.
function switchTheme() {
  const wanted = isDark() ? "light" : "dark";
  try {
    if ((wanted === "dark") === system.matches) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, wanted);
    showTheme();
  } catch { root.dataset.theme = wanted; }
}

function filterBy(list) {
  const filters = [...list.querySelectorAll("[data-filter], [data-filter-key]")];
  const entries = [...list.querySelectorAll("[data-entry]")];
  const matches = (entry) => filters.every((input) => {
    const wanted = input.value.trim(), key = input.dataset.filterKey;
    if (!wanted) return true;
    if (!key) return (entry.textContent + entry.dataset.entry).toLowerCase().includes(wanted.toLowerCase());
    return [JSON.parse(entry.dataset.entry)[key]].flat().includes(wanted);
  });
  list.addEventListener("input", () => {
    for (const entry of entries) entry.hidden = !matches(entry);
    const shown = entries.filter((entry) => !entry.hidden).length;
    list.querySelector("[data-count]").textContent = shown === entries.length ? "" : `${shown} of ${entries.length}`;
  });
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

const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
tip.setAttribute("role", "status");

function line(row) {
  const [, value, low, high] = row.point;
  const band = low === undefined ? "" : ` [${low.toPrecision(4)}, ${high.toPrecision(4)}]`;
  return Object.assign(document.createElement("span"), { textContent: `${row.name}: ${Number(value.toPrecision(4))}${band}` });
}

// A figure's panels come as data: where they lie in the drawing, their axes, and their lines' points.
function figure(svg, panels) {
  const place = ([low, high, log], v) => (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low));
  const stops = panels.map((panel) => {
    const xs = panel.lines.flatMap((one) => one.points.map((point) => point[0]));
    return [...new Set(xs)].sort((a, b) => a - b);
  });
  let at = { panel: 0, stop: -1 };

  function show(number, stop) {
    const panel = panels[number];
    at = { panel: number, stop: Math.max(0, Math.min(stops[number].length - 1, stop)) };
    const x = stops[number][at.stop];
    const rows = panel.lines.flatMap((one) => {
      const point = one.points.find((p) => p[0] === x && p[1] !== null);
      return point ? [{ name: one.name, point }] : [];
    });
    if (!rows.length) return hide();
    rows.sort((a, b) => b.point[1] - a.point[1]);
    const head = Object.assign(document.createElement("b"), { textContent: `${panel.what}: ${Number(x.toPrecision(4))}` });
    tip.replaceChildren(head, ...rows.slice(0, 14).map(line));
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const left = window.scrollX + box.left + (panel.box[0] + place(panel.x, x) * panel.box[2]) * scale;
    const flip = left + tip.offsetWidth + 24 > window.scrollX + document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, flip ? left - tip.offsetWidth - 12 : left + 12)}px`;
    tip.style.top = `${window.scrollY + box.top + panel.box[1] * scale + 10}px`;
  }

  function hide() { tip.hidden = true; }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const number = panels.findIndex(({ box: b }) => x >= b[0] && x <= b[0] + b[2] && y >= b[1] && y <= b[1] + b[3]);
    if (number < 0 || !stops[number].length) return hide();
    const panel = panels[number];
    const distance = (stop) => Math.abs(panel.box[0] + place(panel.x, stop) * panel.box[2] - x);
    show(number, stops[number].reduce((best, stop, i) => (distance(stop) < distance(stops[number][best]) ? i : best), 0));
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !stops[at.panel].length) return;
    event.preventDefault();
    show(at.panel, at.stop + step);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
}

document.addEventListener("DOMContentLoaded", () => {
  document.body.append(tip);
  document.querySelectorAll(".listing").forEach(filterBy);
  for (const table of document.querySelectorAll("table[data-sort]")) {
    [...table.tHead.rows[table.tHead.rows.length - 1].cells].forEach((cell, column) => {
      const button = cell.querySelector("button");
      button?.addEventListener("click", () => sortBy(table, column, button));
    });
  }
  for (const svg of document.querySelectorAll("svg[data-figure]")) {
    const data = document.getElementById(`${svg.dataset.figure}-data`);
    if (data) figure(svg, JSON.parse(data.textContent));
  }
  const button = document.getElementById("theme");
  button.addEventListener("click", switchTheme);
  button.hidden = false;
  system.addEventListener("change", showTheme);
  addEventListener("storage", showTheme);
  showTheme();
});
