// What an agent does on its way to an answer: its tool calls and plans, from the HTTP API, and the files of messages.

import { ApiError, follow, get, withQuery } from "../shared/api.js";
import { element, icon } from "../shared/dom.js";
import { plural, texts } from "../shared/texts.js";
import { sendFrame } from "./socket.js";
import { activeSession, state, userItem } from "./state.js";
import { render } from "./view.js";

/** @typedef {{id: string, role: string, turn?: string, seq?: number, content: any}} ApiMessage */

const MAX_SHOWN_CHARS = 4000;
const MAX_ARGUMENT_CHARS = 80;
const MAX_NAMES = 3;
const CHANNEL = "web";
const MAX_LISTED = 100;

/**
 * The steps of each turn, by their ids.
 * @type {Map<string, Map<string, ApiMessage>>}
 */
const turns = new Map();

/** @type {Map<string, {node: HTMLDetailsElement, look: string}>} */
const nodes = new Map();

/** @type {Set<string>} */
const ended = new Set();

let followed = "";
let stop = () => {};

/**
 * Follows the session on screen while the page is visible. A browser has few connections for streams, and hidden pages
 * would take them all.
 */
export function followSession() {
  const id = document.hidden || !state.isOpen ? "" : (activeSession()?.id ?? "");
  if (id === followed) return;
  stop();
  stop = () => {};
  if (id) stop = follow(`/api/sessions/${id}/events`, { message: onNewStep, title: onTitle, turn: onTurnEnd });
  followed = id;
  if (id) loadSteps(id);
}

/** Reads the steps of the messages on screen. Call this when a history has come. */
export async function loadSteps(id = followed) {
  const oldest = state.items.find((item) => item.isRecorded || item.turn)?.at;
  if (!id || !oldest) return;
  try {
    // One second earlier: `since` excludes its own moment.
    const since = new Date(Date.parse(oldest) - 1000).toISOString();
    const { messages } = await get(withQuery(`/api/sessions/${id}/messages`, { since }));
    if (id !== followed) return;
    messages.forEach(onStep);
    await findRunningTurn(id, messages.findLast((/** @type {ApiMessage} */ message) => message.content.type === "tool"));
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem; // The next history tries again.
  }
}

/**
 * Finds out whether a tool call without a result is running. Its turn may have been stopped instead.
 * @param {string} id
 * @param {ApiMessage | undefined} newest
 */
async function findRunningTurn(id, newest) {
  if (!newest?.turn || newest.content.result != null || state.runningTurn) return;
  const { sessions } = await get(withQuery("/api/sessions", { channel: CHANNEL, limit: MAX_LISTED }));
  const isRunning = sessions.some((/** @type {any} */ session) => session.id === id && session.isRunning);
  if (!isRunning || id !== followed || ended.has(newest.turn)) return;
  state.runningTurn = newest.turn;
  render();
}

/** Forgets the steps of the session that was on screen. */
export function clearSteps() {
  turns.clear();
  ended.clear();
  nodes.clear();
  state.runningTurn = null;
}

/** @param {ApiMessage} message */
function onStep(message) {
  const { content, turn } = message;
  if (message.role === "user") return showFiles(message);
  if (!turn || !["tool", "plan"].includes(content.type)) return;
  const steps = turns.get(turn) ?? new Map();
  turns.set(turn, steps);
  // A plan replaces the one before it.
  const id = content.type === "plan" ? "plan" : message.id;
  if ((steps.get(id)?.seq ?? -1) < (message.seq ?? 0)) steps.set(id, message);
  render();
}

/** @param {ApiMessage} message */
function onNewStep(message) {
  if (message.turn && message.content.type === "tool") state.runningTurn = message.turn;
  onStep(message);
}

/** @param {ApiMessage} message */
function showFiles({ id, content }) {
  const item = userItem(id);
  if (!item || !content.attachments?.length) return;
  item.files = content.attachments;
  item.plain = content.text;
  render();
}

const onTitle = () => sendFrame({ type: "sessions" });

/** @param {{turn: string}} end */
function onTurnEnd({ turn }) {
  ended.add(turn);
  if (state.runningTurn === turn) state.runningTurn = null;
  render();
}

/**
 * Returns the element with the steps of a turn, or null if it has none.
 * @param {string | null | undefined} turn
 * @param {boolean} isLive The turn is running: its steps are unfolded.
 */
export function stepsNode(turn, isLive) {
  const steps = turn && turns.get(turn);
  if (!turn || !steps) return null;
  const known = nodes.get(turn) ?? { node: element("details", "steps"), look: "" };
  nodes.set(turn, known);
  const look = [isLive, ...[...steps.values()].map(({ id, seq }) => `${id}:${seq}`)].join();
  if (look === known.look) return known.node;
  const wasLive = known.look.startsWith("true");
  if (isLive || wasLive) known.node.open = isLive;
  known.look = look;
  draw(known.node, [...steps.values()], isLive);
  return known.node;
}

/**
 * @param {HTMLDetailsElement} node
 * @param {ApiMessage[]} steps
 * @param {boolean} isLive
 */
function draw(node, steps, isLive) {
  const open = new Set([...node.querySelectorAll("details[open]")].map((each) => each.getAttribute("data-id")));
  const tools = steps.filter(({ content }) => content.type === "tool");
  const summary = element("summary");
  const names = [...new Set(tools.map(({ content }) => content.tool))];
  const more = names.length > MAX_NAMES ? " …" : "";
  const words = [plural(texts.chat.steps, tools.length), names.slice(0, MAX_NAMES).join(", ") + more].filter(Boolean).join(" · ");
  summary.append(icon("tool"), element("span", "", words));
  const list = element("ol");
  for (const step of steps) {
    const row = step.content.type === "plan" ? planRow(step) : toolRow(step, isLive);
    if (row instanceof HTMLDetailsElement) row.open = open.has(step.id);
    const item = element("li");
    item.append(row);
    list.append(item);
  }
  node.replaceChildren(summary, list);
}

/**
 * @param {ApiMessage} step
 * @param {boolean} isLive
 */
function toolRow({ id, content }, isLive) {
  const row = element("details", "step");
  row.dataset.id = id;
  const isRunning = isLive && content.result == null;
  const summary = element("summary");
  const sign = element("span", isRunning ? "sign running" : "sign");
  if (!isRunning) sign.append(icon(content.isError ? "warning" : "check"));
  sign.setAttribute("role", "img");
  sign.setAttribute("aria-label", isRunning ? texts.chat.running : content.isError ? texts.chat.failed : texts.chat.done);
  const about = content.title ?? Object.values(content.args).map(String).join(" ");
  summary.append(sign, element("b", "", content.tool), element("span", "about", shorten(about.replace(/\s+/g, " "), MAX_ARGUMENT_CHARS)));
  row.append(summary);
  if (Object.keys(content.args).length) row.append(block(texts.chat.arguments, JSON.stringify(content.args, null, 2)));
  for (const { path, diff } of content.diffs ?? []) row.append(block(path, diff));
  if (content.result) row.append(block(texts.chat.result, content.result));
  return row;
}

/** @param {ApiMessage} step */
function planRow({ content }) {
  const list = element("ul", "plan");
  for (const step of content.steps) list.append(element("li", step.status, step.content));
  return list;
}

/**
 * @param {string} title
 * @param {string} text
 */
function block(title, text) {
  const node = element("div", "step-block");
  const pre = element("pre", "", shorten(text, MAX_SHOWN_CHARS));
  pre.tabIndex = 0;
  node.append(element("small", "", title), pre);
  return node;
}

/**
 * @param {string} text
 * @param {number} limit
 */
function shorten(text, limit) {
  return text.length > limit ? `${text.slice(0, limit)}…` : text;
}
