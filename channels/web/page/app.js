// The chat page: shows the frames of the server and sends what the user types. No framework, no third-party code.
// Only the server's sanitised HTML is inserted as HTML; everything else is inserted as text.
"use strict";

const HISTORY_LIMIT = 200;
const RETRY_AFTER_MS = 1000;
const BACKOFF_MS = [300, 600, 1200, 2500, 5000, 10000];
const OUTBOX_KEY = "gatehouse.outbox";
const THEME_KEY = "gatehouse.theme";

const $ = (id) => document.getElementById(id);
const isCommand = (text) => /^[/!](?![/!])\S/.test(text);
const now = () => new Date().toISOString();

const state = {
  socket: null,
  isOpen: false,
  attempt: 0,
  reconnectTimer: 0,
  connection: 0, // Counts connections. A draft of an earlier one may have been finished while we were offline.
  outbox: [], // Messages without an acknowledgement, oldest first. Only the first one is ever in flight.
  inFlight: null,
  items: [], // The entries of the log, in order.
  finished: new Set(), // Keys of complete answers; a late draft of one is ignored.
  awaiting: new Set(), // Ids of accepted messages without an answer.
  quiet: new Map(), // Commands sent by a button, by id. Their answers appear as a toast, not in the log.
  sessions: [],
  active: undefined, // Number of the session on screen; null without a session, undefined until the server has sent it.
  unread: new Set(),
  keepFrom: 0, // Index in `items`, set by a command. When the session changes, the items from here on stay.
  refetched: new Set(), // Keys of answers for which the history was requested because their question was missing.
  commands: [],
  files: [], // Files for the next message. Each is uploaded at once, and has a `ref` after that.
  maxFrameBytes: 256 * 1024, // Until the server has sent its limit.
  selected: -1,
  isAtEnd: true,
};

/* Sign-in. The code of a link works once. It is removed from the address bar first of all. */

async function start() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code) {
    history.replaceState(null, "", location.pathname);
    await exchangeCode(code);
  }
  const me = await whoami();
  if (me === null) return showLogin();
  if (me === undefined) return void setTimeout(start, RETRY_AFTER_MS);
  showApp(me);
}

async function exchangeCode(code) {
  try {
    await fetch("/auth/exchange", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ code }),
    });
  } catch {
    // The server is unreachable. `whoami` fails too, and is retried.
  }
}

// Returns the user's record, null if not signed in, or undefined if the server is unreachable.
async function whoami() {
  try {
    const answer = await fetch("/auth/whoami", { cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) return null;
    return answer.ok ? await answer.json() : undefined;
  } catch {
    return undefined;
  }
}

function showLogin() {
  $("app").hidden = true;
  $("login").hidden = false;
}

function showApp(me) {
  $("login").hidden = true;
  $("app").hidden = false;
  $("whoami").textContent = me.name ? `Signed in as ${me.name}` : "";
  state.outbox = storedOutbox();
  restorePending();
  render();
  connect();
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

/* The connection. After a reconnect, unacknowledged messages are resent with the same id. */

function connect() {
  clearTimeout(state.reconnectTimer);
  if (state.socket) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/web/ws`);
  state.socket = socket;
  socket.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  socket.addEventListener("close", () => onClose(socket));
}

function onClose(socket) {
  if (state.socket !== socket) return;
  state.socket = null;
  state.isOpen = false;
  state.inFlight = null;
  render();
  const wait = BACKOFF_MS[Math.min(state.attempt, BACKOFF_MS.length - 1)] * (0.75 + Math.random() / 2);
  state.attempt += 1;
  state.reconnectTimer = setTimeout(reconnect, wait);
}

async function reconnect() {
  clearTimeout(state.reconnectTimer);
  if (state.socket) return;
  if ((await whoami()) === null) return showLogin();
  connect();
}

function reconnectNow() {
  if (!$("app").hidden && !state.socket) reconnect();
}

function sendFrame(frame) {
  if (state.isOpen) state.socket.send(JSON.stringify(frame));
}

function receive(frame) {
  const take = {
    hello: onHello,
    ack: onAck,
    echo: onEcho,
    draft: onDraft,
    message: onMessage,
    sessions: onSessions,
    history: onHistory,
    commands: onCommands,
    error: onError,
  }[frame.type];
  if (take) take(frame);
}

function onHello(frame) {
  state.maxFrameBytes = frame.max_frame_bytes;
  state.isOpen = true;
  state.attempt = 0;
  state.connection += 1;
  showConnection();
  sendNext();
  sendFrame({ type: "sessions" });
  requestHistory();
  if (!state.commands.length) sendFrame({ type: "commands" });
}

function showConnection() {
  $("connection").dataset.state = state.isOpen ? "open" : "waiting";
  $("connection").lastElementChild.textContent = state.isOpen ? "Connected" : "Connecting…";
}

/* Sending: one message at a time, so that they arrive in the order in which they were typed. */

function sendMessage(text, { isQuiet = false, isUrgent = false, files = [] } = {}) {
  const message = { id: newId(), text, isQuiet, at: now(), files };
  if (isCommand(text)) state.keepFrom = state.items.length;
  if (isQuiet) state.quiet.set(message.id, text);
  else state.items.push({ kind: "user", id: message.id, text: shownText(message), at: message.at, state: "pending" });
  if (isUrgent && state.outbox.length) state.outbox.splice(state.inFlight ? 1 : 0, 0, message);
  else state.outbox.push(message);
  storeOutbox();
  state.isAtEnd = true;
  render();
  sendNext();
}

// Not crypto.randomUUID: browsers have it only on pages served over TLS or from this machine.
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function sendNext() {
  const [head] = state.outbox;
  if (!state.isOpen || state.inFlight || !head) return;
  state.inFlight = head.id;
  sendFrame(frameOf(head));
}

function frameOf({ id, text, files }) {
  return files?.length ? { type: "message", id, text, files } : { type: "message", id, text };
}

// The same text as the history will show.
function shownText({ text, files = [] }) {
  return [text, ...files.map((file) => `[${file.kind}: ${file.name}]`)].filter(Boolean).join("\n");
}

function isTooLong(text) {
  const frame = JSON.stringify(frameOf({ id: newId(), text }));
  return new TextEncoder().encode(frame).length > state.maxFrameBytes;
}

function removeFromOutbox(id) {
  state.outbox = state.outbox.filter((message) => message.id !== id);
  storeOutbox();
  if (state.inFlight === id) state.inFlight = null;
  sendNext();
}

function onAck(frame) {
  const item = userItem(frame.id);
  if (item) Object.assign(item, { state: "taken", at: frame.at });
  if (item && frame.verdict !== "refused" && !isCommand(item.text)) expectAnswer(frame.id);
  removeFromOutbox(frame.id);
  render();
}

// The answer may come before the acknowledgement.
function expectAnswer(id) {
  if (!state.items.some((item) => item.replyTo === id && !item.isLive)) state.awaiting.add(id);
}

function onError(frame) {
  const item = frame.id && userItem(frame.id);
  if (frame.id && frame.can_retry) return void setTimeout(() => resend(frame.id), RETRY_AFTER_MS);
  if (item) Object.assign(item, { state: "failed", problem: frame.text });
  else toast(frame.text);
  if (frame.id) removeFromOutbox(frame.id);
  render();
}

function resend(id) {
  if (state.inFlight === id) state.inFlight = null;
  sendNext();
}

function userItem(id) {
  return state.items.find((item) => item.kind === "user" && item.id === id);
}

function storedOutbox() {
  try {
    const stored = JSON.parse(sessionStorage.getItem(OUTBOX_KEY));
    return Array.isArray(stored) ? stored : [];
  } catch {
    return [];
  }
}

function storeOutbox() {
  try {
    sessionStorage.setItem(OUTBOX_KEY, JSON.stringify(state.outbox));
  } catch {
    // The storage is full or disabled. The messages are still in memory.
  }
}

/* Receiving. */

function onEcho(frame) {
  if (userItem(frame.id)) return;
  if (isCommand(frame.text)) state.keepFrom = state.items.length;
  else state.awaiting.add(frame.id);
  const later = state.items.findIndex((item) => item.replyTo === frame.id);
  const place = later < 0 ? state.items.length : later;
  state.items.splice(place, 0, { kind: "user", id: frame.id, text: frame.text, at: frame.at, state: "taken" });
  render();
}

function onDraft(frame) {
  if (state.finished.has(frame.key) || !belongsHere(frame)) return;
  putItem({ kind: "reply", key: frame.key, text: frame.text, html: frame.html, at: now(), isLive: true, connection: state.connection, replyTo: frame.reply_to });
  refetchMissingQuestion(frame);
  render();
}

function onMessage(frame) {
  const isRepeated = state.finished.has(frame.key);
  remember(state.finished, frame.key);
  noteAnswer(frame);
  if (isRepeated) return;
  if (isAnswerToStop(frame)) state.awaiting.clear();
  if (state.quiet.delete(frame.reply_to)) toast(frame.text);
  else if (belongsHere(frame)) putItem(messageItem(frame));
  sendFrame({ type: "sessions" });
  render();
}

// Answers come in the order of the messages, and one answer may cover several: earlier messages are answered as well.
function noteAnswer(frame) {
  state.awaiting.delete(frame.reply_to);
  const place = state.items.findIndex((item) => item.kind === "user" && item.id === frame.reply_to);
  if (frame.kind !== "reply" || place < 0) return;
  for (const item of state.items.slice(0, place)) state.awaiting.delete(item.id);
}

// /stop also drops the messages that waited behind the stopped answer.
function isAnswerToStop(frame) {
  const asked = state.quiet.get(frame.reply_to) ?? userItem(frame.reply_to)?.text ?? "";
  return /^[/!]stop\b/i.test(asked);
}

function messageItem(frame) {
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
  };
}

function putItem(item) {
  // A history that was read after the turn already has the file, as a line without a key.
  const isSame = (other) => other.key === item.key || (item.file && other.file?.url === item.file.url);
  let place = state.items.findIndex(isSame);
  if (item.key !== undefined && place >= 0 && hasQuestionBelow(place)) {
    item = { ...item, node: state.items[place].node };
    state.items.splice(place, 1);
    place = -1;
  }
  if (item.key !== undefined && place >= 0) state.items[place] = { ...item, node: state.items[place].node };
  else state.items.push(item);
}

// An answer that continues after a question moves below that question.
function hasQuestionBelow(place) {
  return state.items.slice(place + 1).some((item) => item.isQuestion && item.replyTo === state.items[place].replyTo);
}

// An answer in another session only marks that session in the side bar.
function belongsHere(frame) {
  if (frame.session == null || frame.session === state.active) return true;
  state.unread.add(frame.session);
  if (!state.sessions.some((session) => session.number === frame.session)) sendFrame({ type: "sessions" });
  return false;
}

// A message that was queued while the page was reloaded is in the history once its turn has begun.
function refetchMissingQuestion(frame) {
  if (!frame.reply_to || userItem(frame.reply_to) || state.refetched.has(frame.key)) return;
  remember(state.refetched, frame.key);
  requestHistory();
}

function remember(set, value) {
  set.add(value);
  if (set.size > 500) set.delete(set.values().next().value);
}

function onSessions(frame) {
  const active = frame.sessions.find((session) => session.is_active)?.number ?? null;
  state.sessions = frame.sessions;
  if (state.active !== undefined && active !== state.active) changeSession(active);
  state.active = active;
  state.unread.delete(active);
  render();
}

function changeSession(active) {
  state.items = state.items.slice(state.keepFrom);
  state.keepFrom = 0;
  state.active = active;
  for (const id of state.awaiting) if (!userItem(id)) state.awaiting.delete(id);
  state.isAtEnd = true;
  requestHistory();
}

function requestHistory() {
  for (const item of state.items) item.isOld = true;
  sendFrame({ type: "history", limit: HISTORY_LIMIT });
}

function onHistory(frame) {
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

function restorePending() {
  for (const message of state.outbox) {
    if (message.isQuiet) state.quiet.set(message.id, message.text);
    else if (!userItem(message.id)) state.items.push({ ...message, text: shownText(message), kind: "user", state: "pending" });
  }
}

function onCommands(frame) {
  state.commands = frame.commands.map((command) => ({ ...command, name: command.name.replace(/^\//, "") }));
  suggest();
}

function isBusy() {
  return state.awaiting.size > 0 || state.items.some((item) => item.isLive);
}

/* Drawing. `render` may be called often: it draws once per animation frame, and touches only changed elements. */

let isRenderPlanned = false;

function render() {
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

function drawLog() {
  const nodes = state.items.map((item) => {
    item.node ??= element("article", "item");
    drawItem(item);
    return item.node;
  });
  replaceNodes($("log"), nodes);
}

// Makes `nodes` the children of `parent`, and touches only nodes that are added, removed or moved.
function replaceNodes(parent, nodes) {
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
}

function drawItem(item) {
  const look = [item.kind, item.text, item.html, item.state, item.isLive, item.problem, item.at, state.isOpen];
  if (item.node.look?.every((value, place) => value === look[place])) return;
  item.node.look = look;
  item.node.className = `item ${item.kind} ${item.state ?? ""} ${item.isLive ? "live" : ""}`.trim();
  item.node.setAttribute("aria-busy", String(Boolean(item.isLive)));
  const body = item.node.querySelector(":scope > .body") ?? item.node.appendChild(element("div", "body"));
  if (item.file) body.replaceChildren(downloadLink(item.file));
  else if (item.html === undefined || item.html === null) body.textContent = item.text;
  else drawProse(body, item);
  drawExtras(item);
}

function drawProse(body, item) {
  body.classList.add("prose");
  const fresh = document.createElement("template");
  fresh.innerHTML = item.html;
  if (!item.isLive) fresh.content.querySelectorAll("pre").forEach(addCopyButton);
  patch(body, fresh.content);
}

// Keeps unchanged blocks at the start, so that a text selection survives while the answer grows.
function patch(body, fresh) {
  let old = body.firstChild;
  while (old && fresh.firstChild && old.isEqualNode(fresh.firstChild)) {
    fresh.firstChild.remove();
    old = old.nextSibling;
  }
  while (old) {
    const next = old.nextSibling;
    old.remove();
    old = next;
  }
  body.append(fresh);
}

function drawExtras(item) {
  for (const extra of item.node.querySelectorAll(":scope > :not(.body)")) extra.remove();
  if (item.buttons?.length) item.node.append(buttonRow(item));
  if (item.kind === "user" && item.state === "failed") item.node.append(element("span", "state", item.problem));
  if (item.kind === "user" && item.state === "pending") item.node.append(element("span", "state", pendingText()));
  else if (!item.isLive) item.node.append(timeElement(item.at));
}

function downloadLink({ name, size, url }) {
  const link = element("a", "download");
  link.href = new URL(url, location.origin).pathname + new URL(url, location.origin).search;
  link.download = name;
  link.append(icon("file"), element("span", "", name), element("small", "", formatSize(size)));
  return link;
}

function icon(name) {
  const svg = $("attach").firstElementChild.cloneNode(true);
  svg.firstElementChild.setAttribute("href", `#icon-${name}`);
  return svg;
}

function formatSize(size) {
  if (size < 1000) return `${size} bytes`;
  return size < 1e6 ? `${Math.round(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

function pendingText() {
  return state.isOpen ? "Sending" : "Will be sent after reconnecting";
}

function buttonRow(item) {
  const row = element("div", "buttons");
  for (const button of item.buttons) {
    const node = element("button", "", button.label);
    node.type = "button";
    node.addEventListener("click", () => {
      if (item.isQuestion) closeQuestion(item, row);
      sendMessage(button.command, { isQuiet: true });
    });
    row.append(node);
  }
  return row;
}

// A question can be answered once.
function closeQuestion(item, row) {
  item.buttons = [];
  row.remove();
}

function timeElement(at) {
  const node = element("time", "", new Date(at).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }));
  node.dateTime = at;
  return node;
}

function addCopyButton(pre) {
  const frame = element("div", "code");
  const head = element("div", "code-head");
  const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
  const button = element("button", "copy", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", "Copy this code");
  head.append(element("span", "", language), button);
  pre.tabIndex = 0;
  pre.replaceWith(frame);
  frame.append(head, pre);
}

async function copy(button) {
  const text = button.closest(".code").querySelector("pre").textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.closest(".code").querySelector("pre"));
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 1600);
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

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function newUnreadDot() {
  const dot = element("span", "dot");
  dot.setAttribute("role", "img");
  dot.setAttribute("aria-label", "New answer");
  return dot;
}

function titleOf(session) {
  return session.title || (session.messages ? `Session ${session.number}` : "New conversation");
}

function relativeTime(at) {
  const seconds = (Date.now() - Date.parse(at)) / 1000;
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  if (seconds < 60) return "just now";
  if (seconds < 3600) return words.format(-Math.floor(seconds / 60), "minute");
  if (seconds < 86400) return words.format(-Math.floor(seconds / 3600), "hour");
  return words.format(-Math.floor(seconds / 86400), "day");
}

function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

let toastTimer = 0;

function toast(text) {
  clearTimeout(toastTimer);
  $("toast").textContent = text;
  $("toast").hidden = false;
  toastTimer = setTimeout(() => ($("toast").hidden = true), 4000);
}

/* Scrolling: the view follows the newest message unless the user has scrolled up. */

function scrollToEnd() {
  $("scroller").scrollTop = $("scroller").scrollHeight;
}

function onScroll() {
  const { scrollHeight, scrollTop, clientHeight } = $("scroller");
  state.isAtEnd = scrollHeight - scrollTop - clientHeight < 48;
  showEndButton();
}

function showEndButton() {
  $("to-end").hidden = state.isAtEnd;
}

/* The composer. */

function submit() {
  const text = $("input").value.trim();
  const files = state.files.filter((file) => file.ref).map(({ ref, name, kind, media_type, size }) => ({ ref, name, kind, media_type, size }));
  if (!text && !files.length) return;
  if (state.files.some((file) => file.isLoading)) return toast("A file is still uploading. Send the message when it's done.");
  if (isTooLong(text)) return toast("This message is too long. Send it in parts.");
  $("input").value = "";
  state.files = [];
  drawFiles();
  resizeInput();
  sendMessage(text, { files });
}

function resizeInput() {
  const input = $("input");
  // Set by the `rows` attribute, because the content security policy forbids inline styles.
  input.rows = 1;
  while (input.scrollHeight > input.clientHeight + 1 && input.rows < 10) input.rows += 1;
  $("send").disabled = !input.value.trim() && !state.files.some((file) => file.ref);
  suggest();
}

function onKey(event) {
  if (event.isComposing) return;
  if (!$("suggestions").hidden && handleSuggestionKey(event)) return event.preventDefault();
  const wantsNewLine = event.shiftKey || matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || wantsNewLine) return;
  event.preventDefault();
  submit();
}

function focusInput() {
  if (matchMedia("(pointer: fine)").matches) $("input").focus();
}

/* Files for the next message: picked, pasted or dropped. They are uploaded before the message is sent. */

function addFiles(files) {
  for (const file of files) upload(file);
  focusInput();
}

async function upload(blob) {
  const file = { name: blob.name || "file", isLoading: true };
  state.files.push(file);
  drawFiles();
  try {
    const answer = await fetch(`/files?name=${encodeURIComponent(file.name)}`, {
      method: "POST",
      headers: { "Content-Type": "application/octet-stream" },
      body: blob,
    });
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    Object.assign(file, told);
  } catch (problem) {
    state.files = state.files.filter((other) => other !== file);
    toast(problem instanceof TypeError ? `${file.name} couldn't be uploaded. Try again.` : `${file.name}: ${problem.message}`);
  }
  file.isLoading = false;
  drawFiles();
  resizeInput();
}

function drawFiles() {
  $("files").replaceChildren(...state.files.map(fileChip));
  $("files").hidden = state.files.length === 0;
}

function fileChip(file) {
  const chip = element("li", file.isLoading ? "loading" : "");
  const remove = element("button");
  remove.type = "button";
  remove.setAttribute("aria-label", `Remove ${file.name}`);
  remove.append(icon("close"));
  remove.addEventListener("click", () => {
    state.files = state.files.filter((other) => other !== file);
    drawFiles();
    resizeInput();
  });
  chip.append(element("span", "", file.isLoading ? `${file.name} …` : `${file.name} · ${formatSize(file.size)}`), remove);
  return chip;
}

function onPaste(event) {
  const files = [...event.clipboardData.files];
  if (!files.length) return;
  event.preventDefault();
  addFiles(files);
}

function onDrag(event) {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  $("composer").classList.toggle("target", event.type === "dragover");
  if (event.type === "drop") addFiles(event.dataTransfer.files);
}

function listenForFiles() {
  $("attach").addEventListener("click", () => $("picker").click());
  $("picker").addEventListener("change", () => {
    addFiles([...$("picker").files]);
    $("picker").value = "";
  });
  $("input").addEventListener("paste", onPaste);
  for (const type of ["dragover", "dragleave", "drop"]) $("chat").addEventListener(type, onDrag);
}

/* Command suggestions. */

function suggest() {
  const typed = /^[/!](?![/!])([^\n]*)$/.exec($("input").value)?.[1].toLowerCase();
  const fitting = typed === undefined ? [] : state.commands.filter((one) => one.name.startsWith(typed));
  state.selected = -1;
  $("suggestions").replaceChildren(...fitting.map(suggestion));
  $("suggestions").hidden = fitting.length === 0;
  $("input").removeAttribute("aria-activedescendant");
}

function suggestion(command, place) {
  const row = element("li");
  row.id = `suggestion-${place}`;
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", "false");
  row.dataset.name = command.name;
  const name = element("b", "", `/${command.name}`);
  if (command.arguments) name.append(" ", element("em", "", command.arguments));
  row.append(name, element("span", "", command.summary));
  return row;
}

// Returns true if the list has handled the key.
function handleSuggestionKey(event) {
  const rows = $("suggestions").children;
  if (event.key === "ArrowDown") select((state.selected + 1) % rows.length);
  else if (event.key === "ArrowUp") select((Math.max(state.selected, 0) - 1 + rows.length) % rows.length);
  else if (event.key === "Escape") $("suggestions").hidden = true;
  else if (event.key === "Tab" && !event.shiftKey) complete(rows[Math.max(state.selected, 0)]);
  else if (event.key === "Enter" && state.selected >= 0) complete(rows[state.selected]);
  else return false;
  return true;
}

function select(place) {
  state.selected = place;
  [...$("suggestions").children].forEach((row, index) => row.setAttribute("aria-selected", String(index === place)));
  const row = $("suggestions").children[place];
  row.scrollIntoView({ block: "nearest" });
  $("input").setAttribute("aria-activedescendant", row.id);
}

function complete(row) {
  const command = state.commands.find((one) => one.name === row.dataset.name);
  $("input").value = `/${command.name}${command.arguments ? " " : ""}`;
  $("input").focus();
  resizeInput();
  $("suggestions").hidden = true;
}

/* The drawer on narrow screens, and the theme. */

function openDrawer(isOpen) {
  $("drawer").classList.toggle("open", isOpen);
  $("scrim").hidden = !isOpen;
  $("drawer-open").setAttribute("aria-expanded", String(isOpen));
  $("chat").inert = isOpen;
  if (isOpen) $("new-chat").focus();
}

function closeDrawer() {
  if (!$("drawer").classList.contains("open")) return;
  openDrawer(false);
  $("drawer-open").focus();
}

function runCommand(command) {
  closeDrawer();
  sendMessage(command, { isQuiet: true });
  focusInput();
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME_KEY);
  } catch {
    return null;
  }
}

function applyTheme() {
  const chosen = storedTheme();
  const isDark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  document.documentElement.dataset.look = isDark ? "dark" : "light";
}

function toggleTheme() {
  const next = document.documentElement.dataset.look === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(THEME_KEY, next);
  } catch {
    document.documentElement.dataset.theme = next;
  }
  applyTheme();
}

/* Event listeners. */

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
  $("log").addEventListener("click", (event) => event.target.matches(".copy") && copy(event.target));
  $("scroller").addEventListener("scroll", onScroll, { passive: true });
  $("to-end").addEventListener("click", () => ((state.isAtEnd = true), scrollToEnd()));
  listenToSideBar();
  listenForFiles();
  matchMedia("(max-width: 52rem)").addEventListener("change", () => openDrawer(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  addEventListener("online", reconnectNow);
  addEventListener("resize", () => (resizeInput(), state.isAtEnd && scrollToEnd()));
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
