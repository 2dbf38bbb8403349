// Shows Markdown that the server has rendered and sanitised. Nothing else is ever inserted as HTML.

import { button, closest, element } from "./dom.js";
import { texts } from "./texts.js";

const SHOWN_MS = 1600;

/**
 * Shows rendered Markdown in `body`. Blocks that have not changed keep their elements, and a selection in them.
 * @param {HTMLElement} body
 * @param {string} html
 */
export function showMarkdown(body, html) {
  body.classList.add("prose");
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  for (const pre of fresh.content.querySelectorAll("pre")) frameCode(pre);
  for (const table of fresh.content.querySelectorAll("table")) frameTable(table);
  patch(body, fresh.content);
}

/**
 * Keeps unchanged blocks at the start.
 * @param {HTMLElement} body
 * @param {DocumentFragment} fresh
 */
function patch(body, fresh) {
  let old = body.firstChild;
  while (old && fresh.firstChild && old.isEqualNode(fresh.firstChild)) {
    fresh.firstChild.remove();
    old = old.nextSibling;
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
  body.append(fresh);
}

/**
 * Puts code below a line with its language. The line is there from the start, so that nothing jumps at the end.
 * @param {HTMLPreElement} pre
 */
function frameCode(pre) {
  const frame = element("div", "code");
  const head = element("div", "code-head");
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const copy = button("copy", texts.common.copy);
  copy.setAttribute("aria-label", texts.common.copyCode);
  head.append(element("span", "", language), copy);
  pre.tabIndex = 0;
  pre.replaceWith(frame);
  frame.append(head, pre);
}

/**
 * A wide table scrolls in its frame, with the arrow keys as well.
 * @param {HTMLTableElement} table
 */
function frameTable(table) {
  const frame = element("div", "table");
  frame.tabIndex = 0;
  table.replaceWith(frame);
  frame.append(table);
}

/**
 * Handles clicks on the buttons of code below `root`.
 * @param {HTMLElement} root
 */
export function listenForCopies(root) {
  root.addEventListener("click", async (event) => {
    const copy = closest(event, ".copy");
    const pre = copy?.closest(".code")?.querySelector("pre");
    if (!copy || !pre) return;
    const isCopied = await copyText(pre.textContent ?? "");
    if (!isCopied) getSelection()?.selectAllChildren(pre);
    copy.textContent = isCopied ? texts.common.copied : texts.common.selected;
    setTimeout(() => (copy.textContent = texts.common.copy), SHOWN_MS);
  });
}

/**
 * Returns whether the browser has let the page write to the clipboard.
 * @param {string} text
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
