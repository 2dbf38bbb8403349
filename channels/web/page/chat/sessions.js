// The list of sessions in the side bar: titles, a search, and what a person can do with a session.

import { ApiError, call, get, withQuery } from "../shared/api.js";
import { askForText, askToConfirm } from "../shared/dialog.js";
import { $, button, element, icon, label, replaceNodes, setText } from "../shared/dom.js";
import { relativeTime } from "../shared/format.js";
import { openMenu } from "../shared/menu.js";
import { fill, plural, texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { sendFrame } from "./socket.js";
import { state, titleOf } from "./state.js";

/** @typedef {import("./state.js").Session} Session */
/** @typedef {{item: HTMLElement, button: HTMLElement, name: HTMLElement, about: HTMLElement, dot: HTMLElement, more: HTMLElement}} Row */
/** @typedef {{sessionId: string, title: string, text: string, timestamp: string, isArchived?: boolean}} Hit */

const CHANNEL = "web";
const MAX_TITLE_CHARS = 60;
const SEARCH_AFTER_MS = 250;
const MAX_LISTED = 100;
const searchField = $("search", HTMLInputElement);

/**
 * Each session keeps its row: an element that is replaced between mouse down and mouse up gets no click.
 * @type {Map<number, Row>}
 */
const rows = new Map();

export function drawSessions() {
  const numbers = new Set(state.sessions.map((session) => session.number));
  for (const number of [...rows.keys()]) if (!numbers.has(number)) rows.delete(number);
  const words = searchField.value.trim().toLowerCase();
  const shown = state.sessions.filter((session) => titleOf(session).toLowerCase().includes(words));
  replaceNodes($("sessions"), shown.map(drawRow));
  $("no-sessions").hidden = state.sessions.length > 0;
  $("no-hits").hidden = !words || shown.length > 0 || $("hits").childElementCount > 0;
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
  label(row.more, fill(texts.chat.actionsFor, { title: titleOf(session) }));
  return row.item;
}

/**
 * @param {number} number
 * @returns {Row}
 */
function newRow(number) {
  const item = element("li", "row");
  const open = button("session", "");
  open.dataset.session = String(number);
  const [name, about, dot] = [element("span", "name"), element("span", "about"), element("span", "dot")];
  dot.setAttribute("role", "img");
  dot.setAttribute("aria-label", texts.chat.newAnswer);
  open.append(name, about, dot);
  const more = button("more", "");
  more.append(icon("more"));
  more.addEventListener("click", () => openMenu(more, more.title, actions(number)));
  item.append(open, more);
  return { item, button: open, name, about, dot, more };
}

/** @param {number} number */
function actions(number) {
  const session = state.sessions.find((one) => one.number === number);
  if (!session) return [];
  return [
    { label: texts.chat.rename, icon: "edit", run: () => rename(session) },
    { label: texts.chat.archive, icon: "archive", run: () => change("POST", `${pathOf(session.id)}/archive`) },
    { label: texts.chat.delete, icon: "delete", isDangerous: true, run: () => remove(session.id, titleOf(session)) },
  ];
}

/** @param {string} id */
const pathOf = (id) => `/api/sessions/${encodeURIComponent(id)}`;

/** @param {Session} session */
async function rename(session) {
  const title = await askForText({
    title: texts.chat.renameTitle,
    label: texts.chat.titleLabel,
    value: session.title,
    maxLength: MAX_TITLE_CHARS,
    confirm: texts.chat.save,
  });
  if (title) await change("PATCH", pathOf(session.id), { title });
}

/**
 * @param {string} id
 * @param {string} title
 */
async function remove(id, title) {
  const isSure = await askToConfirm({
    title: fill(texts.chat.deleteTitle, { title }),
    text: texts.chat.deleteText,
    confirm: texts.chat.delete,
    isDangerous: true,
  });
  return isSure && (await change("DELETE", withQuery(pathOf(id), { permanent: true })));
}

/**
 * Changes a session, and returns whether that has worked.
 * @param {"POST" | "PATCH" | "DELETE"} method
 * @param {string} path
 * @param {object} [body]
 */
async function change(method, path, body) {
  try {
    await call(method, path, body);
    return true;
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    toast(problem.message);
    return false;
  } finally {
    sendFrame({ type: "sessions" });
  }
}

let searchTimer = 0;

/** @param {(number: number) => void} open Called with the number of the session that was found. */
export function listenToSearch(open) {
  searchField.addEventListener("input", () => {
    clearTimeout(searchTimer);
    $("hits").replaceChildren();
    drawSessions();
    if (searchField.value.trim().length > 1) searchTimer = setTimeout(() => search(open), SEARCH_AFTER_MS);
  });
  searchField.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !searchField.value) return;
    event.stopPropagation(); // It would close the drawer as well.
    clearSearch();
  });
}

export function clearSearch() {
  clearTimeout(searchTimer);
  searchField.value = "";
  $("hits").replaceChildren();
  drawSessions();
}

/** @param {(number: number) => void} open */
async function search(open) {
  const words = searchField.value.trim();
  /** @type {{hits: Hit[]}} */
  let found;
  try {
    found = await get(withQuery("/api/search", { q: words, channel: CHANNEL, limit: 30 }));
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    return toast(problem.message);
  }
  if (words !== searchField.value.trim()) return;
  const hits = found.hits.filter((hit) => hit.isArchived || state.sessions.some((session) => session.id === hit.sessionId));
  $("hits").replaceChildren(...hits.map((hit) => hitRow(hit, open)));
  drawSessions();
}

/**
 * @param {Hit} hit
 * @param {(number: number) => void} open
 */
function hitRow(hit, open) {
  const item = element("li");
  const row = button("session hit", "");
  const about = hit.isArchived ? `${texts.chat.archived} · ${relativeTime(hit.timestamp)}` : relativeTime(hit.timestamp);
  row.append(element("span", "name", hit.title || texts.chat.newConversation), element("span", "snippet", hit.text), element("span", "about", about));
  row.addEventListener("click", async () => {
    const number = hit.isArchived ? await restore(hit.sessionId) : state.sessions.find(({ id }) => id === hit.sessionId)?.number;
    if (number) open(number);
  });
  item.append(row);
  return item;
}

/**
 * Brings a session back from the archive, and returns its number.
 * @param {string} id
 * @returns {Promise<number | null>}
 */
async function restore(id) {
  try {
    return (await call("POST", `${pathOf(id)}/restore`)).number;
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    toast(problem.message);
    return null;
  } finally {
    sendFrame({ type: "sessions" });
  }
}

/**
 * Shows the archived sessions in a dialog, from which they can be opened and deleted.
 * @param {(number: number) => void} open
 */
export async function showArchive(open) {
  const dialog = element("dialog", "dialog");
  const title = element("h2", "", texts.chat.archiveTitle);
  title.id = "archive-title";
  dialog.setAttribute("aria-labelledby", title.id);
  const list = element("ul", "archive");
  const close = button("plain", texts.chat.close);
  close.addEventListener("click", () => dialog.close());
  const buttons = element("div", "dialog-buttons");
  buttons.append(close);
  dialog.append(title, list, buttons);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const { sessions } = await get(withQuery("/api/sessions", { archived: true, channel: CHANNEL, limit: MAX_LISTED }));
    list.replaceChildren(...sessions.map((/** @type {any} */ session) => archivedRow(session, dialog, open)));
    if (!sessions.length) list.replaceWith(element("p", "", texts.chat.archiveEmpty));
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    list.replaceWith(element("p", "", problem.message));
  }
}

/**
 * @param {{id: string, title: string, number: number, updatedAt: string}} session
 * @param {HTMLDialogElement} dialog
 * @param {(number: number) => void} open
 */
function archivedRow(session, dialog, open) {
  const item = element("li", "archived");
  const title = session.title || fill(texts.chat.session, { number: session.number });
  const words = element("span", "name", title);
  words.append(element("small", "", relativeTime(session.updatedAt)));
  const back = button("icon", fill(texts.chat.restore, { title }), "restore");
  back.addEventListener("click", async () => {
    const number = await restore(session.id);
    if (!number) return;
    dialog.close();
    open(number);
  });
  const away = button("icon", fill(texts.chat.deleteTitle, { title }), "delete");
  away.addEventListener("click", async () => {
    if (await remove(session.id, title)) item.remove();
  });
  item.append(words, back, away);
  return item;
}
