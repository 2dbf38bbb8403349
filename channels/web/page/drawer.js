// The drawer on narrow screens, and the theme.

import { $ } from "./dom.js";

const THEME_KEY = "gatehouse.theme";

export function openDrawer(isOpen) {
  $("drawer").classList.toggle("open", isOpen);
  $("scrim").hidden = !isOpen;
  $("drawer-open").setAttribute("aria-expanded", String(isOpen));
  $("chat").inert = isOpen;
  if (isOpen) $("new-chat").focus();
}

export function closeDrawer() {
  if (!$("drawer").classList.contains("open")) return;
  openDrawer(false);
  $("drawer-open").focus();
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

export function applyTheme() {
  const chosen = storedTheme();
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  document.documentElement.dataset.look = isDark ? "dark" : "light";
}

export function toggleTheme() {
  const next = document.documentElement.dataset.look === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(THEME_KEY, next);
  } catch {
    document.documentElement.dataset.theme = next;
  }
  applyTheme();
}
