// The chat page: shows the frames of the server and sends what the user types. No framework, no third-party code.

import { focusInput, listenForFiles, onKey, resizeInput, submit } from "./composer.js";
import { onDraft, onEcho, onMessage, onSessions } from "./conversation.js";
import { $, toast } from "./dom.js";
import { applyTheme, closeDrawer, openDrawer, toggleTheme } from "./drawer.js";
import { onHistory, requestHistory } from "./history.js";
import { copy } from "./log.js";
import { exchangeCode, showLogin, takeCode, whoami } from "./login.js";
import { onAck, onError, resendItem, restorePending, RETRY_AFTER_MS, sendMessage, sendNext, storedOutbox, storeOutbox } from "./outbox.js";
import { openConnection, reconnectNow, sendFrame } from "./socket.js";
import { state } from "./state.js";
import { complete, onCommands } from "./suggestions.js";
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

async function start(code = takeCode()) {
  const problem = code ? await exchangeCode(code) : "";
  const me = problem === undefined ? undefined : await whoami();
  if (me === null) return showLogin(problem);
  // Without the code if it was exchanged: it does not work a second time.
  if (me === undefined) return void setTimeout(start, RETRY_AFTER_MS, problem === undefined ? code : null);
  showApp(me);
}

function showApp(me) {
  $("login").hidden = true;
  $("app").hidden = false;
  $("whoami").textContent = me.name ? `Signed in as ${me.name}` : "";
  state.outbox = storedOutbox();
  restorePending();
  render();
  openConnection(FRAME_HANDLERS);
  focusInput();
}

// The reload clears the page. Unsent messages must not stay for the next user of this browser.
async function signOut() {
  try {
    await fetch("/auth/logout", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  } catch {
    return toast("Can't reach Gatehouse, so you're still signed in. Try again.");
  }
  state.outbox = [];
  storeOutbox();
  location.reload();
}

function onHello(frame) {
  state.maxFrameBytes = frame.max_frame_bytes;
  state.maxTextChars = frame.max_text_chars ?? Infinity;
  $("setup").hidden = !frame.needs_setup;
  state.isOpen = true;
  state.connection += 1;
  showConnection();
  sendNext();
  sendFrame({ type: "sessions" });
  requestHistory();
  if (!state.commands.length) sendFrame({ type: "commands" });
}

function onLogClick({ target }) {
  if (target.matches(".copy")) copy(target);
  if (target.matches(".buttons button")) pressButton(target);
  if (target.matches(".resend")) resendItem(itemOf(target));
}

function itemOf(node) {
  return state.items.find((item) => item.node === node.closest(".item"));
}

function pressButton(button) {
  const item = itemOf(button);
  const { command } = button.dataset;
  // A question can be answered once, and a failed answer retried once. Other buttons of a question show more, in the log.
  const showsMore = item?.buttons?.find((one) => one.command === command)?.is_answer === false;
  if (item?.isQuestion && !showsMore) item.buttons = [];
  if ((item?.isQuestion && !showsMore) || item?.isFailure) button.parentElement.remove();
  sendMessage(command, { isQuiet: !showsMore });
}

function runCommand(command) {
  closeDrawer();
  sendMessage(command, { isQuiet: true });
  focusInput();
}

function listen() {
  $("login-retry").addEventListener("click", () => location.reload());
  $("composer").addEventListener("submit", (event) => (event.preventDefault(), submit(), focusInput()));
  $("input").addEventListener("input", resizeInput);
  $("input").addEventListener("keydown", onKey);
  $("input").addEventListener("blur", () => ($("suggestions").hidden = true));
  $("suggestions").addEventListener("mousedown", (event) => {
    event.preventDefault(); // Keeps the focus in the message box.
    if (event.target.closest("li")) complete(event.target.closest("li"));
  });
  $("stop").addEventListener("click", () => sendMessage("/stop", { isQuiet: true, isUrgent: true }));
  $("welcome").addEventListener("click", (event) => event.target.dataset.say && sendMessage(event.target.dataset.say));
  $("log").addEventListener("click", onLogClick);
  $("scroller").addEventListener("scroll", onScroll, { passive: true });
  $("to-end").addEventListener("click", () => ((state.isAtEnd = true), scrollToEnd()));
  listenToSideBar();
  listenForFiles();
  matchMedia("(max-width: 52rem)").addEventListener("change", () => openDrawer(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  addEventListener("online", reconnectNow);
  addEventListener("resize", resizeInput);
  // Also when a toast, a file or a longer message takes space from the log.
  new ResizeObserver(() => state.isAtEnd && scrollToEnd()).observe($("scroller"));
  // Opened details push the button below them out of sight. The event does not bubble.
  $("scroller").addEventListener("toggle", () => state.isAtEnd && scrollToEnd(), { capture: true });
  addEventListener("hashchange", () => location.hash.startsWith("#code=") && start());
  document.addEventListener("visibilitychange", () => document.hidden || (reconnectNow(), render()));
  setInterval(render, 30000); // Updates "5 min ago".
}

function listenToSideBar() {
  $("new-chat").addEventListener("click", () => runCommand("/new"));
  $("sessions").addEventListener("click", (event) => {
    const row = event.target.closest(".session");
    if (row?.getAttribute("aria-current")) closeDrawer();
    else if (row) runCommand(`/session resume ${row.dataset.session}`);
  });
  $("drawer-open").addEventListener("click", () => openDrawer(true));
  $("drawer-close").addEventListener("click", closeDrawer);
  $("scrim").addEventListener("click", closeDrawer);
  $("drawer").addEventListener("keydown", (event) => event.key === "Escape" && closeDrawer());
  $("theme").addEventListener("click", toggleTheme);
  $("sign-out").addEventListener("click", signOut);
}

applyTheme();
listen();
start();
