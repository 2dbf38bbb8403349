// The list of sessions in the side bar.

import { $, element, replaceNodes, setText } from "../shared/dom.js";
import { relativeTime } from "../shared/format.js";
import { plural, texts } from "../shared/texts.js";
import { state, titleOf } from "./state.js";

/** @typedef {import("./state.js").Session} Session */
/** @typedef {{item: HTMLElement, button: HTMLElement, name: HTMLElement, about: HTMLElement, dot: HTMLElement}} Row */

/**
 * Each session keeps its row: an element that is replaced between mouse down and mouse up gets no click.
 * @type {Map<number, Row>}
 */
const rows = new Map();

export function drawSessions() {
  const numbers = new Set(state.sessions.map((session) => session.number));
  for (const number of [...rows.keys()]) if (!numbers.has(number)) rows.delete(number);
  replaceNodes($("sessions"), state.sessions.map(drawRow));
  $("no-sessions").hidden = rows.size > 0;
}

/** @param {Session} session */
function drawRow(session) {
  const row = rows.get(session.number) ?? newRow(session.number);
  rows.set(session.number, row);
  if (session.is_active) row.button.setAttribute("aria-current", "true");
  else row.button.removeAttribute("aria-current");
  setText(row.name, titleOf(session));
  const size = plural(texts.chat.messages, session.messages);
  setText(row.about, session.messages ? `${size} · ${relativeTime(session.updated_at)}` : texts.chat.empty);
  row.dot.hidden = !state.unread.has(session.number);
  return row.item;
}

/**
 * @param {number} number
 * @returns {Row}
 */
function newRow(number) {
  const item = element("li");
  const button = element("button", "session");
  button.type = "button";
  button.dataset.session = String(number);
  const [name, about, dot] = [element("span", "name"), element("span", "about"), element("span", "dot")];
  dot.setAttribute("role", "img");
  dot.setAttribute("aria-label", texts.chat.newAnswer);
  button.append(name, about, dot);
  item.append(button);
  return { item, button, name, about, dot };
}
