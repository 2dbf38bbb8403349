// Sending: one message at a time, so that they arrive in the order in which they were typed.
// After a reconnect, unacknowledged messages are resent with the same id.

import { $ } from "../shared/dom.js";
import { RETRY_AFTER_MS } from "../shared/sign_in.js";
import { load, save } from "../shared/storage.js";
import { toast } from "../shared/toast.js";
import { sendFrame } from "./socket.js";
import { isCommand, now, RETRY, state, userItem } from "./state.js";
import { render } from "./view.js";

/** @typedef {import("./state.js").Message} Message */
/** @typedef {import("./state.js").Item} Item */
/** @typedef {import("./state.js").UploadedFile} UploadedFile */

const OUTBOX_KEY = "gatehouse.outbox";

/**
 * @param {string} text
 * @param {{isQuiet?: boolean, isUrgent?: boolean, files?: UploadedFile[]}} [options]
 */
export function sendMessage(text, { isQuiet = false, isUrgent = false, files = [] } = {}) {
  const message = { id: newId(), text, isQuiet, at: now(), files };
  if (isCommand(text)) {
    state.keepFrom = state.items.length;
    state.textAtCommand = $("input", HTMLTextAreaElement).value;
  }
  if (isQuiet) state.quiet.set(message.id, text);
  else state.items.push(pendingItem(message));
  if (isUrgent && state.outbox.length) state.outbox.splice(state.inFlight ? 1 : 0, 0, message);
  else state.outbox.push(message);
  storeOutbox();
  state.isAtEnd = true;
  render();
  sendNext();
}

/**
 * @param {Message} message
 * @returns {Item}
 */
function pendingItem(message) {
  return { kind: "user", id: message.id, text: shownText(message), at: message.at, state: "pending", canResend: !message.files?.length };
}

/** @param {Item} item */
export function resendItem(item) {
  state.items = state.items.filter((other) => other !== item);
  sendMessage(item.text);
}

// A UUID, so that the message has the same id in the HTTP API. Not crypto.randomUUID: browsers have it only on pages
// served over TLS or from this machine.
function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const digits = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

export function sendNext() {
  const [head] = state.outbox;
  if (!state.isOpen || state.inFlight || !head) return;
  state.inFlight = head.id;
  sendFrame(frameOf(head));
}

/** @param {{id: string, text: string, files?: UploadedFile[]}} message */
function frameOf({ id, text, files }) {
  return files?.length ? { type: "message", id, text, files } : { type: "message", id, text };
}

/**
 * The same text as the history will show.
 * @param {{text: string, files?: UploadedFile[]}} message
 */
function shownText({ text, files = [] }) {
  return [text, ...files.map((file) => `[${file.kind}: ${file.name}]`)].filter(Boolean).join("\n");
}

/** @param {string} text */
export function isTooLong(text) {
  // The server counts characters; `length` counts surrogates as well, and is never smaller.
  if (text.length > state.maxTextChars && [...text].length > state.maxTextChars) return true;
  const frame = JSON.stringify(frameOf({ id: newId(), text }));
  return new TextEncoder().encode(frame).length > state.maxFrameBytes;
}

/** @param {string} id */
function removeFromOutbox(id) {
  state.outbox = state.outbox.filter((message) => message.id !== id);
  storeOutbox();
  if (state.inFlight === id) state.inFlight = null;
  sendNext();
}

/** @param {{id: string, at: string, verdict: string}} frame */
export function onAck(frame) {
  const item = userItem(frame.id);
  if (item) Object.assign(item, { state: "taken", at: frame.at });
  const isQuestion = item ? !isCommand(item.text) : state.quiet.get(frame.id) === RETRY;
  if (isQuestion && frame.verdict !== "refused") expectAnswer(frame.id);
  removeFromOutbox(frame.id);
  render();
}

/**
 * The answer may come before the acknowledgement.
 * @param {string} id
 */
function expectAnswer(id) {
  if (!state.items.some((item) => item.replyTo === id && !item.isLive)) state.awaiting.add(id);
}

/** @param {{text: string, id?: string, can_retry?: boolean}} frame */
export function onError(frame) {
  const { id } = frame;
  const item = id && userItem(id);
  if (id && frame.can_retry) return void setTimeout(() => resend(id), RETRY_AFTER_MS);
  if (item) Object.assign(item, { state: "failed", problem: frame.text });
  else toast(frame.text);
  if (id) removeFromOutbox(id);
  render();
}

/** @param {string} id */
function resend(id) {
  if (state.inFlight === id) state.inFlight = null;
  sendNext();
}

/** @returns {Message[]} */
export function storedOutbox() {
  try {
    const stored = JSON.parse(load(OUTBOX_KEY, sessionStorage) ?? "[]");
    return Array.isArray(stored) ? stored : [];
  } catch {
    return [];
  }
}

export function storeOutbox() {
  // If the browser keeps nothing, the messages are still in memory.
  save(OUTBOX_KEY, JSON.stringify(state.outbox), sessionStorage);
}

export function restorePending() {
  for (const message of state.outbox) {
    if (message.isQuiet) state.quiet.set(message.id, message.text);
    else if (!userItem(message.id)) state.items.push(pendingItem(message));
  }
}
