// The entries of the log, and their order: an answer stands below its question, above the next one.

import { state } from "./state.js";

/** @typedef {import("./state.js").Item} Item */

/**
 * Adds an entry, or replaces the one with the same key.
 * @param {Item} item
 */
export function putItem(item) {
  const place = state.items.findIndex((other) => isSame(other, item));
  if (place >= 0) item = { ...item, node: state.items[place].node };
  if (place >= 0 && !hasQuestionBelow(place)) {
    state.items[place] = item;
    return;
  }
  if (place >= 0) state.items.splice(place, 1);
  if (!item.file) state.items = state.items.filter((other) => !isLineOf(other, item));
  if (!placeBelowQuestion(state.items, item)) state.items.push(item);
}

/**
 * A history that was read after the turn already has the file, as a line without a key.
 * @param {Item} other
 * @param {Item} item
 */
function isSame(other, item) {
  if (item.file && other.file) return other.file.url === item.file.url;
  return item.key !== undefined && other.key === item.key;
}

/**
 * A text that the history has of the answer `item`, which repeats it.
 * @param {Item} line
 * @param {Item} item
 */
export function isLineOf(line, item) {
  return line.key === undefined && line.turn !== undefined && line.turn === turnOf(item) && !line.file;
}

/**
 * An answer that continues after a question moves below that question.
 * @param {number} place
 */
function hasQuestionBelow(place) {
  return state.items.slice(place + 1).some((item) => item.isQuestion && item.replyTo === state.items[place].replyTo);
}

/**
 * Puts an answer below its question. Returns false if the question is not there.
 * @param {Item[]} items
 * @param {Item} item
 */
export function placeBelowQuestion(items, item) {
  const question = item.replyTo ? items.findIndex((other) => other.kind === "user" && other.id === item.replyTo) : -1;
  if (question < 0) return false;
  insertBefore(items, item, (other, index) => index > question && (other.kind === "user" || isFileOf(other, item)));
  return true;
}

/**
 * @param {Item[]} items
 * @param {Item} item
 */
export function placeByTime(items, item) {
  const isAfter = (/** @type {Item} */ other) => rank(other) - rank(item) || Date.parse(other.at) - Date.parse(item.at);
  insertBefore(items, item, (other) => isAfter(other) > 0);
}

/**
 * Messages that wait for their turn are below everything that the transcript has, and unsent ones below those.
 * @param {Item} item
 */
function rank(item) {
  if (item.kind !== "user") return item.isLive ? 1 : 0;
  return item.state === "pending" ? 3 : state.awaiting.has(item.id ?? "") && !item.isRecorded ? 2 : 0;
}

/**
 * @param {Item[]} items
 * @param {Item} item
 * @param {(other: Item, index: number) => boolean} isBelow
 */
function insertBefore(items, item, isBelow) {
  const place = items.findIndex(isBelow);
  items.splice(place < 0 ? items.length : place, 0, item);
}

/**
 * The files of an answer follow its text.
 * @param {Item} file
 * @param {Item} item
 */
function isFileOf(file, item) {
  return Boolean(file.file) && !item.file && turnOf(file) !== undefined && turnOf(file) === turnOf(item);
}

/**
 * The keys of an answer and of its files start with the turn.
 * @param {Item} item
 */
export function turnOf(item) {
  return item.turn ?? item.key?.split(".")[0];
}
