// The history of a session: its request, and how its lines replace what is on screen.

import { sendFrame } from "./socket.js";
import { isCommand, state } from "./state.js";
import { render } from "./view.js";

const HISTORY_LIMIT = 200;

export function requestHistory() {
  for (const item of state.items) item.isOld = true;
  sendFrame({ type: "history", limit: HISTORY_LIMIT });
}

export function onHistory(frame) {
  if (state.active !== undefined && frame.session !== state.active) return void sendFrame({ type: "sessions" });
  state.active = frame.session;
  const lines = frame.lines.map(lineItem);
  const before = state.items;
  state.items = merge(lines, before);
  keepNodes(lines, before);
  state.keepFrom = state.items.length;
  render();
}

// A line that was on screen before keeps its element, so that a screen reader does not read it again.
function keepNodes(lines, before) {
  const free = before.filter((item) => item.node && !state.items.includes(item));
  for (const line of lines) {
    const place = free.findIndex((item) => item.kind === line.kind && item.text === line.text);
    if (place >= 0) line.node = free.splice(place, 1)[0].node;
  }
}

function lineItem({ role, text, html, at, file }) {
  return { kind: role === "user" ? "user" : "reply", text, html, at, file, state: "taken" };
}

// The lines of the transcript replace their items. Notices, drafts and unsent messages are not in it, and stay.
function merge(lines, items) {
  const said = lines.filter((line) => line.kind === "user").map((line) => line.text);
  const kept = items.filter((item) => (item.kind === "user" ? isMissing(item, said) : isStillShown(item, lines)));
  const isAnswered = lines.at(-1)?.kind === "reply";
  if (isAnswered && !kept.some((item) => state.awaiting.has(item.id))) state.awaiting.clear();
  return [...lines, ...kept].sort(compareItems);
}

function isMissing(item, said) {
  if (item.id === undefined) return false;
  if (item.state !== "taken" || isCommand(item.text)) return true;
  return (!item.isOld || state.awaiting.has(item.id)) && !removeLast(said, item.text);
}

function isStillShown(item, lines) {
  if (item.kind === "notice") return true;
  if (item.isLive) return item.connection === state.connection;
  if (item.file) return !item.isOld && !lines.some((line) => line.file?.url === item.file.url);
  return item.key !== undefined && !item.isOld && !isInHistory(lines, item);
}

// An answer of several steps has several lines in the transcript; the answer ends with the last of them.
function isInHistory(lines, item) {
  const last = lines.at(-1);
  return last?.kind === "reply" && last.text !== "" && item.text.endsWith(last.text);
}

function removeLast(texts, text) {
  const place = texts.lastIndexOf(text);
  if (place >= 0) texts.splice(place, 1);
  return place >= 0;
}

function compareItems(one, other) {
  const rank = (item) => (item.state === "pending" ? 2 : item.isLive ? 1 : 0);
  return rank(one) - rank(other) || Date.parse(one.at) - Date.parse(other.at);
}
