// The chat page: shows the frames of the server and sends what the user types. No framework, no third-party code.

import { ApiError } from "../shared/api.js";
import { $, closest } from "../shared/dom.js";
import { listenForCopies } from "../shared/markdown.js";
import { openMenu } from "../shared/menu.js";
import { signIn, signOut } from "../shared/sign_in.js";
import { fill, languageItems, texts, translate } from "../shared/texts.js";
import { toggleTheme } from "../shared/theme.js";
import { toast } from "../shared/toast.js";
import { onAction } from "./actions.js";
import { focusInput, listenToComposer } from "./composer.js";
import { onDraft, onEcho, onMessage, onSessions } from "./conversation.js";
import { closeDrawer, openDrawer } from "./drawer.js";
import { forgetDrafts } from "./drafts.js";
import { onHistory, requestHistory } from "./history.js";
import { canInstall, install, registerApp } from "./install.js";
import { canNotify, toggleNotifications, wantsNotifications } from "./notifications.js";
import { onAck, onError, resendItem, restorePending, sendMessage, sendNext, storedOutbox, storeOutbox } from "./outbox.js";
import { listenToPicker } from "./picker.js";
import { clearSearch, listenToSearch, showArchive } from "./sessions.js";
import { listenToRecorder, showRecorder } from "./recorder.js";
import { openConnection, reconnectNow, sendFrame } from "./socket.js";
import { state } from "./state.js";
import { followSession } from "./steps.js";
import { onCommands } from "./suggestions.js";
import { onScroll, render, scrollToEnd, showConnection } from "./view.js";

const FRAME_HANDLERS = {
  hello: onHello,
  ack: onAck,
  echo: onEcho,
  draft: onDraft,
  message: onMessage,
  sessions: onSessions,
  history: onHistory,
  commands: onCommands,
  error: onError,
};

/** @param {import("../shared/sign_in.js").Person} person */
function showApp(person) {
  document.getElementById("login")?.remove();
  $("app").hidden = false;
  $("whoami").textContent = person.name ? fill(texts.chat.signedInAs, { name: person.name }) : "";
  state.outbox = storedOutbox();
  restorePending();
  render();
  openConnection(FRAME_HANDLERS);
  focusInput();
}

// The reload clears the page. Unsent messages must not stay for the next user of this browser.
async function leave() {
  try {
    await signOut();
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    return toast(problem.message);
  }
  state.outbox = [];
  storeOutbox();
  forgetDrafts();
  location.reload();
}

/** @param {{max_frame_bytes: number, max_text_chars?: number, needs_setup: boolean, transcribes?: boolean}} frame */
function onHello(frame) {
  state.maxFrameBytes = frame.max_frame_bytes;
  state.maxTextChars = frame.max_text_chars ?? Infinity;
  $("setup").hidden = !frame.needs_setup;
  showRecorder(Boolean(frame.transcribes));
  state.isOpen = true;
  state.connection += 1;
  state.runningTurn = null; // Its end may have been missed.
  showConnection();
  sendNext();
  sendFrame({ type: "sessions" });
  requestHistory();
  if (!state.commands.length) sendFrame({ type: "commands" });
}

/** @param {Event} event */
function onLogClick(event) {
  const pressed = closest(event, ".buttons button");
  const resend = closest(event, ".resend");
  const item = state.items.find(({ node }) => node && node === closest(event, ".item"));
  if (pressed) pressButton(pressed, item);
  if (resend && item) resendItem(item);
  if (item) onAction(event, item);
}

/**
 * @param {HTMLElement} button
 * @param {import("./state.js").Item | undefined} item
 */
function pressButton(button, item) {
  const command = button.dataset.command ?? "";
  // A question can be answered once, and a failed answer retried once. Other buttons of a question show more, in the log.
  const showsMore = item?.buttons?.find((one) => one.command === command)?.is_answer === false;
  if (item?.isQuestion && !showsMore) item.buttons = [];
  if ((item?.isQuestion && !showsMore) || item?.isFailure) button.parentElement?.remove();
  sendMessage(command, { isQuiet: !showsMore });
}

/** @param {string} command */
function runCommand(command) {
  closeDrawer();
  sendMessage(command, { isQuiet: true });
  focusInput();
}

/** @param {number} number */
function openSession(number) {
  clearSearch();
  runCommand(`/session resume ${number}`);
}

function listen() {
  $("stop").addEventListener("click", () => sendMessage("/stop", { isQuiet: true, isUrgent: true }));
  $("welcome").addEventListener("click", (event) => {
    const chip = closest(event, ".chips button");
    if (chip) sendMessage(chip.textContent ?? "");
  });
  $("log").addEventListener("click", onLogClick);
  listenForCopies($("log"));
  $("scroller").addEventListener("scroll", onScroll, { passive: true });
  $("to-end").addEventListener("click", () => {
    state.isAtEnd = true;
    scrollToEnd();
  });
  listenToSideBar();
  listenToComposer();
  listenToRecorder();
  matchMedia("(max-width: 52rem)").addEventListener("change", () => openDrawer(false));
  addEventListener("online", reconnectNow);
  // Also when a toast, a file or a longer message takes space from the log.
  new ResizeObserver(keepAtEnd).observe($("scroller"));
  // Opened details push the button below them out of sight. The event does not bubble.
  $("scroller").addEventListener("toggle", keepAtEnd, { capture: true });
  addEventListener("hashchange", () => void (location.hash.startsWith("#code=") && signIn(showApp)));
  document.addEventListener("visibilitychange", () => {
    followSession();
    if (document.hidden) return;
    reconnectNow();
    render();
  });
  setInterval(render, 30000); // Updates "5 min ago".
}

// A taller window may show the end without a scroll event.
function keepAtEnd() {
  if (state.isAtEnd) scrollToEnd();
  else onScroll();
}

function listenToSideBar() {
  $("new-chat").addEventListener("click", () => runCommand("/new"));
  $("sessions").addEventListener("click", (event) => {
    const row = closest(event, ".session");
    if (row?.getAttribute("aria-current")) closeDrawer();
    else if (row) openSession(Number(row.dataset.session));
  });
  listenToSearch(openSession);
  listenToPicker();
  $("drawer-open").addEventListener("click", () => openDrawer(true));
  $("drawer-close").addEventListener("click", closeDrawer);
  $("scrim").addEventListener("click", closeDrawer);
  $("drawer").addEventListener("keydown", (event) => {
    if (event.key === "Escape") closeDrawer();
  });
  $("theme").addEventListener("click", toggleTheme);
  $("settings").addEventListener("click", () => openMenu($("settings"), texts.common.settings, settings()));
}

function settings() {
  const toConsole = { label: texts.common.console, icon: "gate", run: () => location.assign("/console") };
  const notify = { label: texts.chat.notify, icon: "bell", isChosen: wantsNotifications(), run: () => void toggleNotifications() };
  const app = { label: texts.chat.install, icon: "down", run: () => void install() };
  return [
    toConsole,
    ...(canNotify() ? [notify] : []),
    ...(canInstall() ? [app] : []),
    { label: texts.chat.archiveTitle, icon: "archive", run: () => void showArchive(openSession) },
    { label: texts.common.signOut, icon: "close", run: leave },
    ...languageItems().map((item, place) => (place === 0 ? { ...item, heading: texts.common.language } : item)),
  ];
}

translate(document);
listen();
registerApp();
signIn(showApp);
