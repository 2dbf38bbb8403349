// Receiving: messages, drafts and sessions.

import { toast } from "../shared/toast.js";
import { changeDraft, showDraft } from "./composer.js";
import { requestHistory } from "./history.js";
import { putItem } from "./items.js";
import { notifyOfAnswer } from "./notifications.js";
import { sendFrame } from "./socket.js";
import { isCommand, now, remember, state, userItem } from "./state.js";
import { clearSteps } from "./steps.js";
import { render } from "./view.js";

/** @typedef {import("./state.js").Item} Item */

/** @param {{id: string, text: string, at: string}} frame */
export function onEcho(frame) {
  if (userItem(frame.id)) return;
  if (isCommand(frame.text)) state.keepFrom = state.items.length;
  else state.awaiting.add(frame.id);
  const later = state.items.findIndex((item) => item.replyTo === frame.id);
  const place = later < 0 ? state.items.length : later;
  state.items.splice(place, 0, { kind: "user", id: frame.id, text: frame.text, at: frame.at, state: "taken" });
  render();
}

/** @param {any} frame */
export function onDraft(frame) {
  if (state.finished.has(frame.key) || !belongsHere(frame)) return;
  putItem({ kind: "reply", key: frame.key, text: frame.text, html: frame.html, at: now(), isLive: true, connection: state.connection, replyTo: frame.reply_to });
  refetchMissingQuestion(frame);
  render();
}

/** @param {any} frame */
export function onMessage(frame) {
  const isRepeated = state.finished.has(frame.key);
  remember(state.finished, frame.key);
  noteAnswer(frame);
  if (isRepeated) return;
  if (isAnswerToStop(frame)) state.awaiting.clear();
  for (const id of frame.unanswered ?? []) markDropped(id);
  const isQuiet = state.quiet.delete(frame.reply_to);
  if (isQuiet && frame.kind === "notice") toast(frame.text);
  else if (belongsHere(frame)) {
    putItem(messageItem(frame));
    tellAnswer(frame);
    // The answer to a retry takes the place of an earlier one.
    if (isQuiet) refetchMissingQuestion(frame);
  }
  sendFrame({ type: "sessions" });
  render();
}

/**
 * Answers come in the order of the messages, and one answer may cover several: earlier messages are answered as well.
 * @param {any} frame
 */
function noteAnswer(frame) {
  state.awaiting.delete(frame.reply_to);
  const place = state.items.findIndex((item) => item.kind === "user" && item.id === frame.reply_to);
  if (frame.kind !== "reply" || place < 0) return;
  for (const item of state.items.slice(0, place)) state.awaiting.delete(item.id ?? "");
}

/**
 * /stop also drops the messages that waited behind the stopped answer.
 * @param {any} frame
 */
function isAnswerToStop(frame) {
  const asked = state.quiet.get(frame.reply_to) ?? userItem(frame.reply_to)?.text ?? "";
  return /^[/!]stop\b/i.test(asked);
}

/** @param {string} id */
function markDropped(id) {
  const item = userItem(id);
  if (item) item.state = "dropped";
  state.awaiting.delete(id);
}

/**
 * @param {any} frame
 * @returns {Item}
 */
function messageItem(frame) {
  // An answer to a message of another channel, which is in no transcript of this chat.
  const isAside = frame.kind === "reply" && frame.session == null;
  return {
    kind: frame.kind,
    key: frame.key,
    text: frame.text,
    html: frame.html,
    at: frame.at,
    buttons: frame.buttons ?? [],
    isQuestion: frame.is_question ?? false,
    replyTo: frame.reply_to,
    file: frame.file,
    isAside,
    isFailure: frame.is_failure && frame.kind === "reply" && !isAside,
    details: frame.details,
  };
}

/** @param {any} frame */
function tellAnswer(frame) {
  if (frame.kind !== "reply" || frame.file) return;
  const session = state.sessions.find((one) => one.number === frame.session);
  notifyOfAnswer(session?.title || "Gatehouse", frame.text, userItem(frame.reply_to)?.at);
}

/**
 * An answer in another session only marks that session in the side bar.
 * @param {any} frame
 */
function belongsHere(frame) {
  if (frame.session == null || frame.session === state.active) return true;
  state.unread.add(frame.session);
  if (!state.sessions.some((session) => session.number === frame.session)) sendFrame({ type: "sessions" });
  return false;
}

/**
 * A message that was queued while the page was reloaded is in the history once its turn has begun.
 * @param {any} frame
 */
function refetchMissingQuestion(frame) {
  if (!frame.reply_to || userItem(frame.reply_to) || state.refetched.has(frame.key)) return;
  remember(state.refetched, frame.key);
  requestHistory();
}

/** @param {{sessions: import("./state.js").Session[]}} frame */
export function onSessions(frame) {
  const active = frame.sessions.find((session) => session.is_active)?.number ?? null;
  state.sessions = frame.sessions;
  const before = state.active;
  if (before !== undefined && active !== before) changeSession(active);
  state.active = active;
  if (before === undefined) showDraft();
  else if (active !== before) changeDraft(before);
  if (active !== null) state.unread.delete(active);
  render();
}

/** @param {number | null} active */
function changeSession(active) {
  // Messages on screen that were in no session have created this one.
  const isFirst = (/** @type {Item} */ item) => state.active === null && item.kind === "user" && !isCommand(item.text);
  state.items = state.items.filter((item, place) => place >= state.keepFrom || isFirst(item));
  state.keepFrom = 0;
  state.active = active;
  clearSteps();
  for (const id of state.awaiting) if (!userItem(id)) state.awaiting.delete(id);
  state.isAtEnd = true;
  requestHistory();
}
