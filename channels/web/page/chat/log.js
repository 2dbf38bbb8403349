// Draws the entries of the log.

import { $, button, element, icon, replaceNodes } from "../shared/dom.js";
import { formatSize, formatTime } from "../shared/format.js";
import { showMarkdown } from "../shared/markdown.js";
import { texts } from "../shared/texts.js";
import { actionsOf, canEdit, canRegenerate, editForm } from "./actions.js";
import { turnOf } from "./items.js";
import { isPicture, thumbnail } from "./pictures.js";
import { isCommand, RETRY, state } from "./state.js";
import { stepsNode } from "./steps.js";

/** @typedef {import("./state.js").Item} Item */

/**
 * What an entry looked like when it was drawn last.
 * @type {WeakMap<HTMLElement, unknown[]>}
 */
const looks = new WeakMap();

export function drawLog() {
  const newest = state.items.findLastIndex((item) => item.kind === "user" && item.state !== "dropped" && !isCommand(item.text));
  /** @type {Set<HTMLElement>} */
  const nodes = new Set();
  state.items.forEach((item, place) => {
    item.node ??= element("article", "item");
    drawItem(item, item.node, place > newest);
    const turn = item.kind === "reply" ? turnOf(item) : undefined;
    const steps = stepsNode(turn, turn === state.runningTurn);
    if (steps) nodes.add(steps);
    nodes.add(item.node);
  });
  // The steps of a turn that has not written anything yet.
  const running = stepsNode(state.runningTurn, true);
  if (running) nodes.add(running);
  replaceNodes($("log"), [...nodes]);
}

/**
 * @param {Item} item
 * @param {HTMLElement} node
 * @param {boolean} isNewest Only the newest answer can be retried.
 */
function drawItem(item, node, isNewest) {
  /** @type {unknown[]} */
  const look = [item.kind, item.text, item.html, item.state, item.isLive, item.problem, item.at, state.isOpen, item.isFailure];
  look.push(item.files, item.buttons?.length, isNewest, item.isEdited, canEdit(item), canRegenerate(item, isNewest));
  if (looks.get(node)?.every((value, place) => value === look[place])) return;
  looks.set(node, look);
  node.className = ["item", item.kind, item.state, item.isLive && "live", item.isFailure && "failure"].filter(Boolean).join(" ");
  node.setAttribute("aria-busy", String(Boolean(item.isLive)));
  const body = node.querySelector(":scope > .body") ?? node.appendChild(element("div", "body"));
  if (!(body instanceof HTMLElement)) return;
  if (item.file) drawFile(body, item.file);
  else if (item.files?.length) drawWithFiles(body, item.files, item.plain ?? "");
  else if (item.html === undefined || item.html === null) body.textContent = item.text;
  else showMarkdown(body, item.html);
  for (const extra of node.querySelectorAll(":scope > :not(.body)")) extra.remove();
  body.hidden = Boolean(item.isEdited);
  node.append(...(item.isEdited ? [editForm(item)] : extras(item, isNewest)));
}

/**
 * What stands below the body of an entry.
 * @param {Item} item
 * @param {boolean} isNewest
 */
function extras(item, isNewest) {
  /** @type {HTMLElement[]} */
  const nodes = [];
  if (item.isFailure && item.details) nodes.push(detailsElement(item.details));
  if (item.buttons?.length) nodes.push(buttonRow(item.buttons));
  if (item.isFailure && isNewest) nodes.push(buttonRow([{ label: texts.chat.tryAgain, command: RETRY }]));
  if (item.state === "dropped") nodes.push(droppedState(item));
  if (item.kind === "user" && item.state === "failed") nodes.push(element("span", "state", item.problem));
  if (item.kind === "user" && item.state === "pending") {
    nodes.push(element("span", "state", state.isOpen ? texts.chat.sending : texts.chat.sentLater));
  }
  nodes.push(foot(item, isNewest));
  return nodes;
}

/**
 * The last line of an entry. It keeps its place while an answer is written, so that nothing jumps at the end.
 * @param {Item} item
 * @param {boolean} isNewest
 */
function foot(item, isNewest) {
  const node = element("div", "foot");
  node.append(actionsOf(item, isNewest));
  if (!item.isLive && item.state !== "pending") node.append(timeElement(item.at));
  return node;
}

/**
 * @param {HTMLElement} body
 * @param {import("./state.js").FileLink[]} files
 * @param {string} text
 */
function drawWithFiles(body, files, text) {
  const row = element("div", "thumbnails");
  row.append(...files.flatMap((file) => (file.url ? (isPicture(file) ? thumbnail(file) : downloadLink(file)) : element("span", "", file.name))));
  body.replaceChildren(...(text ? [element("div", "", text)] : []), row);
}

/**
 * Drawn once: a recording that is replaced stops.
 * @param {HTMLElement} body
 * @param {import("./state.js").FileLink} file
 */
function drawFile(body, file) {
  if (body.dataset.file === file.url) return;
  body.dataset.file = file.url;
  const link = downloadLink(file);
  if (isPicture(file)) body.replaceChildren(thumbnail(file), link);
  else if (file.media_type?.startsWith("audio/")) body.replaceChildren(player(link.href), link);
  else body.replaceChildren(link);
}

/** @param {string} url */
function player(url) {
  const audio = element("audio");
  audio.controls = true;
  audio.preload = "metadata";
  audio.src = url;
  return audio;
}

/** @param {import("./state.js").FileLink} file */
function downloadLink({ name, size, url }) {
  const link = element("a", "download");
  link.href = new URL(url, location.origin).pathname + new URL(url, location.origin).search;
  link.download = name;
  link.append(icon("file"), element("span", "", name), element("small", "", formatSize(size)));
  return link;
}

/** @param {string} details */
function detailsElement(details) {
  const node = element("details");
  node.append(element("summary", "", texts.chat.details), element("pre", "", details));
  return node;
}

/** @param {Item} item */
function droppedState(item) {
  const note = element("span", "state", texts.chat.stoppedByYou);
  if (item.canResend) note.append(" · ", button("resend", texts.chat.sendAgain));
  return note;
}

/** @param {import("./state.js").Button[]} buttons */
function buttonRow(buttons) {
  const row = element("div", "buttons");
  for (const each of buttons) {
    const node = button("", each.label);
    node.dataset.command = each.command;
    row.append(node);
  }
  return row;
}

/** @param {string} at */
function timeElement(at) {
  const node = element("time", "", formatTime(at));
  node.dateTime = at;
  return node;
}
