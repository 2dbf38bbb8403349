// Menus that open at a button. The browser shows them above everything, and closes them by Escape or a click elsewhere.

import { button, element, icon } from "./dom.js";

/**
 * @typedef {object} MenuItem
 * @property {string} label
 * @property {string} [heading] Words above the item, which begin a group.
 * @property {string} [note] A few words in small print.
 * @property {string} [icon]
 * @property {boolean} [isChosen] For a choice of one of several items.
 * @property {boolean} [isDangerous]
 * @property {() => void} run
 */

/** @type {HTMLElement | null} */
let opened = null;

/**
 * Opens a menu at `opener`, or closes it if it is open.
 * @param {HTMLElement} opener
 * @param {string} label
 * @param {MenuItem[]} items
 */
export function openMenu(opener, label, items) {
  const wasHere = opener.getAttribute("aria-expanded") === "true";
  opened?.hidePopover();
  if (wasHere) return;
  const menu = element("div", "menu");
  menu.popover = "auto";
  menu.setAttribute("role", "menu");
  menu.setAttribute("aria-label", label);
  for (const item of items) {
    if (item.heading) menu.append(headingRow(item.heading));
    menu.append(row(item, menu));
  }
  menu.addEventListener("keydown", onKey);
  menu.addEventListener("toggle", (event) => {
    if (event.newState === "open") return;
    opener.setAttribute("aria-expanded", "false");
    menu.remove();
    if (opened === menu) opened = null;
  });
  opener.setAttribute("aria-haspopup", "menu");
  opener.setAttribute("aria-expanded", "true");
  // In the same part of the page, and inside a modal dialog: everything outside of one is inert.
  (opener.closest("dialog, main, aside") ?? document.body).append(menu);
  // The style sheet places the menu at its source.
  menu.showPopover({ source: opener });
  opened = menu;
  const chosen = menu.querySelector("[aria-checked=true]") ?? menu.querySelector("button");
  if (chosen instanceof HTMLElement) chosen.focus();
}

/** @param {string} text */
function headingRow(text) {
  const node = element("div", "menu-heading", text);
  node.setAttribute("role", "presentation");
  return node;
}

/**
 * @param {MenuItem} item
 * @param {HTMLElement} menu
 */
function row(item, menu) {
  const node = button(item.isDangerous ? "menu-item dangerous" : "menu-item", "");
  const isChoice = item.isChosen !== undefined;
  node.setAttribute("role", isChoice ? "menuitemradio" : "menuitem");
  if (isChoice) node.setAttribute("aria-checked", String(item.isChosen));
  node.tabIndex = -1;
  const words = element("span", "menu-label", item.label);
  if (item.note) words.append(element("small", "", item.note));
  if (item.icon) node.append(icon(item.icon));
  node.append(words);
  if (item.isChosen) node.append(icon("check"));
  node.addEventListener("click", () => {
    menu.hidePopover();
    item.run();
  });
  return node;
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const menu = /** @type {HTMLElement} */ (event.currentTarget);
  const items = /** @type {HTMLElement[]} */ ([...menu.querySelectorAll("button")]);
  const at = items.findIndex((item) => item === document.activeElement);
  const places = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 };
  if (event.key === "Tab") menu.hidePopover();
  if (!(event.key in places)) return;
  event.preventDefault();
  const place = places[/** @type {keyof typeof places} */ (event.key)];
  items[(place + items.length) % items.length].focus();
}
