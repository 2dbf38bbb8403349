// Draws the page. `render` may be called often: it draws once per animation frame, and touches only changed elements.

import { $, element, relativeTime, replaceNodes, setText } from "./dom.js";
import { drawLog } from "./log.js";
import { isBusy, state, titleOf } from "./state.js";

let isRenderPlanned = false;

export function render() {
  if (isRenderPlanned) return;
  isRenderPlanned = true;
  // A hidden tab gets no animation frames, but must be up to date when the user returns to it.
  if (document.hidden) setTimeout(draw, 50);
  else requestAnimationFrame(draw);
}

function draw() {
  isRenderPlanned = false;
  drawLog();
  drawSessions();
  const isWaiting = isBusy();
  $("thinking").hidden = !isWaiting || state.items.some((item) => item.isLive);
  $("welcome").hidden = state.items.length > 0 || state.active === undefined;
  $("stop").hidden = !isWaiting;
  drawTitle();
  showConnection();
  if (state.isAtEnd) scrollToEnd();
  showEndButton();
}

function drawTitle() {
  const session = state.sessions.find((one) => one.is_active);
  const title = session ? titleOf(session) : "New conversation";
  setText($("title"), title);
  document.title = `${isBusy() ? "… " : ""}${title} · Gatehouse`;
}

export function showConnection() {
  $("connection").dataset.state = state.isOpen ? "open" : "waiting";
  $("connection").lastElementChild.textContent = state.isOpen ? "Connected" : "Connecting…";
}

// Each session keeps its row element: a row that is replaced between mouse down and mouse up gets no click.
const rows = new Map();

function drawSessions() {
  const numbers = new Set(state.sessions.map((session) => session.number));
  for (const number of [...rows.keys()]) if (!numbers.has(number)) rows.delete(number);
  replaceNodes($("sessions"), state.sessions.map(sessionRow));
  $("no-sessions").hidden = rows.size > 0;
}

function sessionRow(session) {
  if (!rows.has(session.number)) rows.set(session.number, newRow(session.number));
  const row = rows.get(session.number);
  const [name, about, dot] = row.firstChild.children;
  if (session.is_active) row.firstChild.setAttribute("aria-current", "true");
  else row.firstChild.removeAttribute("aria-current");
  const size = session.messages === 1 ? "1 message" : `${session.messages} messages`;
  setText(name, titleOf(session));
  setText(about, session.messages ? `${size} · ${relativeTime(session.updated_at)}` : "Empty");
  dot.hidden = !state.unread.has(session.number);
  return row;
}

function newRow(number) {
  const row = element("li");
  const button = element("button", "session");
  button.type = "button";
  button.dataset.session = number;
  button.append(element("span", "name"), element("span", "about"), newUnreadDot());
  row.append(button);
  return row;
}

function newUnreadDot() {
  const dot = element("span", "dot");
  dot.setAttribute("role", "img");
  dot.setAttribute("aria-label", "New answer");
  return dot;
}

export function scrollToEnd() {
  $("scroller").scrollTop = $("scroller").scrollHeight;
}

export function onScroll() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroller");
  state.isAtEnd = scrollHeight - scrollTop - clientHeight < 48;
  showEndButton();
}

function showEndButton() {
  $("to-end").hidden = state.isAtEnd;
}
