"use strict";
// Filters entries by text and by data-* keys, sorts tables by a clicked heading. Without it the pages are complete.
const filters = [...document.querySelectorAll("[data-filter], [data-filter-key]")];
const entries = [...document.querySelectorAll("[data-entry]")];

function matches(entry) {
  return filters.every((input) => {
    const key = input.dataset.filterKey;
    if (key) return !input.value || entry.dataset[key] === input.value;
    return entry.textContent.toLowerCase().includes(input.value.trim().toLowerCase());
  });
}

function refresh() {
  let shown = 0;
  for (const entry of entries) {
    entry.hidden = !matches(entry);
    shown += entry.hidden ? 0 : 1;
  }
  for (const group of document.querySelectorAll("[data-group]")) {
    group.hidden = !group.querySelector("[data-entry]:not([hidden])");
  }
  for (const count of document.querySelectorAll("[data-count]")) {
    count.textContent = shown === entries.length ? "" : `${shown} of ${entries.length}`;
  }
}

function sortBy(table, column, button) {
  const down = button.dataset.order !== "down";
  for (const other of table.querySelectorAll("th button")) delete other.dataset.order;
  button.dataset.order = down ? "down" : "up";
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
