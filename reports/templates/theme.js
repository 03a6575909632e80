"use strict";
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
