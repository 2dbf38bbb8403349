// The history of a session: its request, and how its lines replace what is on screen.

import { isLineOf, placeBelowQuestion, placeByTime } from "./items.js";
import { sendFrame } from "./socket.js";
import { isCommand, state } from "./state.js";
import { loadSteps } from "./steps.js";
import { render } from "./view.js";

/** @typedef {import("./state.js").Item} Item */

const HISTORY_LIMIT = 200;

export function requestHistory() {
  for (const item of state.items) item.isOld = true;
  const request = { type: "history", limit: HISTORY_LIMIT };
  sendFrame(request);
}

/** @param {{session: number | null, lines: any[]}} frame */
export function onHistory(frame) {
  // Only now: a connection that ends before the first answer keeps its growing pauses.
  state.attempt = 0;
  if (state.active !== undefined && frame.session !== state.active) return void sendFrame({ type: "sessions" });
  state.active = frame.session;
  const lines = frame.lines.map(lineItem);
  const before = state.items;
  state.items = merge(lines, before);
  keepNodes(lines, before);
  state.keepFrom = state.items.length;
  loadSteps();
  render();
}

/**
 * A line that was on screen before keeps its element, so that a screen reader does not read it again.
 * @param {Item[]} lines
 * @param {Item[]} before
 */
function keepNodes(lines, before) {
  const free = before.filter((item) => item.node && !state.items.includes(item));
  for (const line of lines) {
    const place = free.findIndex((item) => item.kind === line.kind && item.text === line.text);
    if (place >= 0) line.node = free.splice(place, 1)[0].node;
  }
}

/**
 * @param {any} line
 * @returns {Item}
 */
function lineItem({ role, text, html, at, file, id, turn, is_failure, details }) {
  if (role === "user") return { kind: "user", id, text, at, state: "taken", isRecorded: true };
  return { kind: "reply", text, html, at, file, turn, isFailure: is_failure, details };
}

/**
 * The lines of the transcript replace their items. Notices, answers to other channels, drafts and unsent messages are
 * not in it, and stay.
 * @param {Item[]} lines
 * @param {Item[]} items
 */
function merge(lines, items) {
  const kept = items.filter((item) => (item.kind === "user" ? isMissing(item, lines) : isStillShown(item, lines)));
  const isAnswered = lines.at(-1)?.kind === "reply";
  if (isAnswered && !kept.some((item) => state.awaiting.has(item.id ?? ""))) state.awaiting.clear();
  // An answer that came while the history was read has more text than its lines.
  const merged = lines.filter((line) => !kept.some((item) => isLineOf(line, item)));
  // Questions first, so that the answers find them.
  for (const item of kept.filter(({ kind }) => kind === "user")) placeByTime(merged, item);
  for (const item of kept.filter(({ kind }) => kind !== "user")) {
    if (!placeBelowQuestion(merged, item)) placeByTime(merged, item);
  }
  return merged;
}

/**
 * @param {Item} item
 * @param {Item[]} lines
 */
function isMissing(item, lines) {
  if (item.id === undefined || lines.some((line) => line.kind === "user" && line.id === item.id)) return false;
  return item.state !== "taken" || isCommand(item.text) || !item.isOld || state.awaiting.has(item.id);
}

/**
 * @param {Item} item
 * @param {Item[]} lines
 */
function isStillShown(item, lines) {
  if (item.kind === "notice" || item.isAside) return true;
  if (item.isLive) return item.connection === state.connection;
  if (item.key === undefined || item.isOld) return false;
  return !lines.some((line) => line.file && line.file.url === item.file?.url);
}
