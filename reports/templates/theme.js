"use strict";
// Light or dark as the visitor chose, before anything is painted. Where nothing may be stored the choice is this page's.
const KEY = "fssl-theme";

function kept() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}

if (["light", "dark"].includes(kept())) document.documentElement.dataset.theme = kept();
