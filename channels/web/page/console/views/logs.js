// The last lines of the log, live, and the messages and replies that need a person.

import { call, get, withQuery } from "../../shared/api.js";
import { askToConfirm } from "../../shared/dialog.js";
import { element } from "../../shared/dom.js";
import { formatTime } from "../../shared/format.js";
import { texts } from "../../shared/texts.js";
import { action, attempt, badge, box, card, checkbox, debounced, empty, field, input, loading, refresh, select, table } from "../elements.js";
import { logLine } from "../log_line.js";

const words = texts.console;
const LEVELS = ["debug", "info", "warning", "error"];
const MAX_SHOWN = 1000;

class LogTail {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.level = select(LEVELS.map((each) => [each, words.level[/** @type {keyof typeof words.level} */ (each)]]), "info");
    this.text = input("search");
    this.node = select([["", words.thisNode]]);
    const [follow, isFollowing] = checkbox(words.followLog, true);
    this.isFollowing = isFollowing;
    this.lines = element("ol", "log-lines tail");
    this.lines.tabIndex = 0;
    this.lines.setAttribute("aria-label", words.log);
    this.older = action("plain", words.earlier, () => this.loadOlder());
    this.nodeField = field(words.node, this.node);
    this.nodeField.hidden = true;
    this.first = 0;
    this.last = 0;
    const reload = () => this.load();
    this.level.addEventListener("change", reload);
    this.node.addEventListener("change", reload);
    this.text.addEventListener("input", debounced(reload));
    const filters = box("div", "filters", field(words.minLevel, this.level), field(words.contains, this.text), this.nodeField, follow);
    this.panel = card(words.log, filters, this.older, this.lines);
    root.append(this.panel);
  }

  query() {
    return { level: this.level.value, q: this.text.value.trim(), node: this.node.value };
  }

  load() {
    return attempt(async () => {
      const { lines, hasOlder } = await get(withQuery("/api/logs", { ...this.query(), limit: 300 }));
      this.lines.replaceChildren(...(lines.length ? lines.map(logLine) : [element("li", "fine", words.noLines)]));
      this.first = lines[0]?.number ?? 0;
      this.last = lines.at(-1)?.number ?? 0;
      this.older.hidden = !hasOlder;
      this.toEnd();
    });
  }

  toEnd() {
    this.lines.scrollTop = this.lines.scrollHeight;
  }

  async loadOlder() {
    const { lines, hasOlder } = await get(withQuery("/api/logs", { ...this.query(), limit: 300, before: this.first }));
    this.first = lines[0]?.number ?? this.first;
    this.older.hidden = !hasOlder;
    const before = this.lines.scrollHeight;
    this.lines.prepend(...lines.map(logLine));
    this.lines.scrollTop += this.lines.scrollHeight - before;
  }

  /** @param {any} line */
  add(line) {
    if (!this.isFollowing.checked || this.node.value || line.number <= this.last) return;
    if (LEVELS.indexOf(line.level) < LEVELS.indexOf(this.level.value)) return;
    if (!`${line.event} ${line.fields}`.toLowerCase().includes(this.text.value.trim().toLowerCase())) return;
    const isAtEnd = this.lines.scrollHeight - this.lines.scrollTop - this.lines.clientHeight < 40;
    if (this.last === 0) this.lines.replaceChildren();
    this.last = line.number;
    this.lines.append(logLine(line));
    while (this.lines.childElementCount > MAX_SHOWN) this.lines.firstElementChild?.remove();
    if (isAtEnd) this.toEnd();
  }

  /** @param {any[]} nodes */
  offerNodes(nodes) {
    if (nodes.length < 2 || this.node.options.length === nodes.length) return;
    this.nodeField.hidden = false;
    this.node.replaceChildren(...nodes.map((each) => new Option(each.name, each.isThis ? "" : each.name)));
  }
}

/** @param {HTMLElement} root */
export function open(root) {
  const letters = box("div", "", loading());
  root.append(letters);
  const log = new LogTail(root);
  log.panel.hidden = true; // Otherwise the letters would push it down when they come.
  let newest = 0;
  const reload = () =>
    attempt(async () => {
      newest += 1;
      const request = newest;
      const found = await get("/api/dead-letters");
      // An answer that comes after that of a later request is older than what is shown.
      if (request === newest) refresh(letters, found, () => [letterCard(found, reload)]);
    });
  Promise.all([reload(), log.load()]).then(() => {
    log.panel.hidden = false;
    log.toEnd();
  });
  let dead = -1;
  return {
    /**
     * @param {string} name
     * @param {any} data
     */
    onEvent(name, data) {
      if (name === "log") log.add(data);
      if (name === "reset") log.load();
      if (name !== "overview") return;
      log.offerNodes(data.nodes);
      const { messages, replies } = data.storage;
      const now = (messages.dead ?? 0) + data.repliesWaiting + (replies.dead ?? 0);
      if (now !== dead) reload(); // Also at the first event: the letters may have changed since they were loaded.
      dead = now;
    },
  };
}

/**
 * @param {any} found
 * @param {() => unknown} reload
 */
function letterCard({ messages, replies, unreadable }, reload) {
  if (!messages.length && !replies.length && !unreadable.length) return card(words.deadLetters, empty(words.noLetters));
  const heads = [words.channel, words.chat, words.text, words.reason, words.since, words.decide];
  const set = messages.map((/** @type {any} */ each) => [
    each.channel,
    each.sender || each.chat,
    each.text,
    each.reason,
    formatTime(each.acceptedAt),
    buttons({ messages: [each.id] }, reload),
  ]);
  const undelivered = replies.map((/** @type {any} */ each) => [
    each.channel,
    each.chat,
    each.text,
    each.reason || badge(each.state),
    formatTime(each.createdAt),
    each.state === "dead" ? buttons({ replies: [each.id] }, reload) : badge(words.stillTried),
  ]);
  const given = {
    messages: messages.map((/** @type {any} */ each) => each.id),
    replies: replies.filter((/** @type {any} */ each) => each.state === "dead").map((/** @type {any} */ each) => each.id),
  };
  return card(
    words.deadLetters,
    set.length > 0 && box("div", "", element("h3", "", words.setAside), table(words.setAside, heads, set)),
    undelivered.length > 0 && box("div", "", element("h3", "", words.undelivered), table(words.undelivered, heads, undelivered)),
    unreadable.length > 0 && empty(words.unreadable),
    given.messages.length + given.replies.length > 1 && box("div", "for-all", element("span", "", words.allOfThem), buttons(given, reload)),
  );
}

/**
 * @param {object} letter
 * @param {() => unknown} reload
 */
function buttons(letter, reload) {
  const retry = () => call("POST", "/api/dead-letters/retry", letter).then(reload);
  const drop = async () => {
    if (!(await askToConfirm({ title: words.dropTitle, text: words.dropText, confirm: words.drop, isDangerous: true }))) return;
    await call("POST", "/api/dead-letters/drop", letter);
    reload();
  };
  return box("div", "buttons", action("primary", words.retry, retry), action("plain", words.drop, drop));
}
