// The pieces that several views of the console are made of.

import { ApiError } from "../shared/api.js";
import { button, element, icon } from "../shared/dom.js";
import { texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";

/** @typedef {Node | string | null | undefined | false} Child */

/**
 * Returns an element with children. Texts become text, never HTML.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} className
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function box(tag, className, ...children) {
  const node = element(tag, className);
  for (const child of children) if (child !== null && child !== undefined && child !== false) node.append(child);
  return node;
}

/**
 * A part of a view with a heading.
 * @param {string} title
 * @param {...Child} children
 */
export function card(title, ...children) {
  const node = box("section", "panel", element("h2", "", title), ...children);
  node.setAttribute("aria-label", title);
  return node;
}

/**
 * @param {string} text
 * @param {"good" | "warn" | "bad" | "neutral"} [tone]
 */
export const badge = (text, tone = "neutral") => element("span", `badge ${tone}`, text);

/** @param {string} text */
export const empty = (text) => element("p", "fine", text);

/**
 * A list of names and values.
 * @param {[string, Child][]} facts
 */
export function factList(facts) {
  const list = element("dl", "facts");
  for (const [name, value] of facts) list.append(box("div", "", element("dt", "", name), box("dd", "", value)));
  return list;
}

/**
 * A table that scrolls in its frame if it is too wide.
 * @param {string} label
 * @param {string[]} heads
 * @param {Child[][]} rows
 * @param {number} [figures] How many columns at the end are figures.
 */
export function table(label, heads, rows, figures = 0) {
  /** @param {number} at */
  const kind = (at) => (at >= heads.length - figures ? "figure" : "");
  const head = box("thead", "", box("tr", "", ...heads.map((text, at) => th(text, kind(at)))));
  const body = box("tbody", "", ...rows.map((cells) => box("tr", "", ...cells.map((cell, at) => td(cell, heads[at], kind(at))))));
  const frame = box("div", "table-frame", box("table", "", head, body));
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", label);
  return frame;
}

/**
 * @param {string} text
 * @param {string} kind
 */
function th(text, kind) {
  const node = element(text ? "th" : "td", kind, text);
  if (text) node.setAttribute("scope", "col");
  return node;
}

/**
 * @param {Child} cell
 * @param {string} head
 * @param {string} kind
 */
function td(cell, head, kind) {
  const node = box("td", kind, cell);
  node.dataset.head = head;
  return node;
}

/**
 * A button that is off while its work is under way. What the gateway refuses is shown as a toast.
 * @param {string} className
 * @param {string} text
 * @param {() => Promise<unknown> | unknown} work
 * @param {string} [iconName]
 */
export function action(className, text, work, iconName) {
  const node = button(className, text);
  if (iconName) node.prepend(icon(iconName));
  node.addEventListener("click", async () => {
    node.disabled = true;
    await attempt(work);
    node.disabled = false;
  });
  return node;
}

/**
 * Does something, and shows what the gateway refuses. Returns whether it was done.
 * @param {() => Promise<unknown> | unknown} work
 */
export async function attempt(work) {
  try {
    await work();
    return true;
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    toast(problem.message);
    return false;
  }
}

/**
 * @param {string} href
 * @param {Child} text
 * @param {string} [className]
 */
export function link(href, text, className = "") {
  const node = box("a", className, text);
  node.href = href;
  return node;
}

/**
 * A control with its label.
 * @param {string} label
 * @param {HTMLElement} control
 */
export const field = (label, control) => box("label", "field", element("span", "", label), control);

/**
 * @param {[string, string][]} options Values with their texts.
 * @param {string} [chosen]
 */
export function select(options, chosen = "") {
  const node = element("select");
  for (const [value, text] of options) {
    const option = element("option", "", text);
    option.value = value;
    option.selected = value === chosen;
    node.append(option);
  }
  return node;
}

/**
 * @param {"text" | "search" | "number" | "date"} type
 * @param {string} [value]
 */
export function input(type, value = "") {
  const node = element("input");
  node.type = type;
  node.value = value;
  return node;
}

/**
 * @param {string} label
 * @param {boolean} isOn
 * @returns {[HTMLLabelElement, HTMLInputElement]}
 */
export function checkbox(label, isOn = false) {
  const node = element("input");
  node.type = "checkbox";
  node.checked = isOn;
  return [box("label", "check", node, element("span", "", label)), node];
}

const FOCUSABLE = "a, button, summary, input, select, textarea, [tabindex]";

/**
 * Replaces the content of `root` if the data for it has changed. What was open stays open, and the focus stays at its place.
 * @param {HTMLElement} root
 * @param {unknown} data
 * @param {() => Child[]} make
 */
export function refresh(root, data, make) {
  const key = JSON.stringify(data);
  if (root.dataset.shown === key) return;
  const isOpen = [...root.querySelectorAll("details")].map((each) => each.open);
  const focused = [...root.querySelectorAll(FOCUSABLE)].indexOf(/** @type {Element} */ (document.activeElement));
  root.replaceChildren(box("div", "", ...make()));
  root.querySelectorAll("details").forEach((each, at) => (each.open = isOpen[at] ?? each.open));
  const next = root.querySelectorAll(FOCUSABLE)[focused];
  if (next instanceof HTMLElement) next.focus({ preventScroll: true });
  root.dataset.shown = key;
}

/**
 * Saves something as a file.
 * @param {Blob} content
 * @param {string} name
 */
export function saveAs(content, name) {
  const node = element("a");
  node.href = URL.createObjectURL(content);
  node.download = name;
  document.body.append(node);
  node.click();
  node.remove();
  setTimeout(() => URL.revokeObjectURL(node.href), 60_000);
}

/**
 * Calls `work` once no call has come for a moment.
 * @param {() => void} work
 * @param {number} [ms]
 */
export function debounced(work, ms = 250) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  };
}

/**
 * A unified diff, with its lines in colours.
 * @param {string} text
 */
export function diff(text) {
  const kinds = new Map([["+", "added"], ["-", "removed"]]);
  const lines = text.split("\n").map((line) => element("span", kinds.get(line[0]) ?? "", `${line}\n`));
  const node = box("pre", "diff", ...lines);
  node.tabIndex = 0;
  return node;
}

/** Shown while the first answer is under way. */
export const loading = () => element("p", "fine", texts.console.loading);
