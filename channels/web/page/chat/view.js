// Draws the page. `render` may be called often: it draws once per animation frame, and touches only changed elements.

import { $, setText } from "../shared/dom.js";
import { texts } from "../shared/texts.js";
import { drawLog } from "./log.js";
import { drawPicker } from "./picker.js";
import { drawSessions } from "./sessions.js";
import { isBusy, state, titleOf } from "./state.js";
import { followSession } from "./steps.js";

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
  followSession();
  drawLog();
  drawSessions();
  drawPicker();
  const isWaiting = isBusy();
  $("thinking").hidden = !isWaiting || state.runningTurn !== null || state.items.some((item) => item.isLive);
  $("welcome").hidden = state.items.length > 0 || state.active === undefined;
  $("stop").hidden = !isWaiting;
  drawTitle();
  showConnection();
  if (state.isAtEnd) scrollToEnd();
  showEndButton();
}

function drawTitle() {
  const session = state.sessions.find((one) => one.is_active);
  const title = session ? titleOf(session) : texts.chat.newConversation;
  setText($("title"), title);
  document.title = `${isBusy() ? "… " : ""}${title} · Gatehouse`;
}

export function showConnection() {
  $("connection").dataset.state = state.isOpen ? "open" : "waiting";
  const words = $("connection").lastElementChild;
  if (words) setText(words, state.isOpen ? texts.chat.connected : texts.chat.connecting);
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
