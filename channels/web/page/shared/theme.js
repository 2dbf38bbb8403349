// Light and dark: by the system, until a person chooses.

import { load, save } from "./storage.js";

const THEME_KEY = "gatehouse.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function applyTheme() {
  const chosen = load(THEME_KEY);
  const root = document.documentElement;
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  root.dataset.look = (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark" ? "dark" : "light";
}

export function toggleTheme() {
  const next = document.documentElement.dataset.look === "dark" ? "light" : "dark";
  save(THEME_KEY, next);
  document.documentElement.dataset.theme = next;
  applyTheme();
}

system.addEventListener("change", applyTheme);
applyTheme();
