// The transcript of a session: everything in it, live, with what one can do about it.

import { ApiError, call, get } from "../shared/api.js";
import { askToConfirm } from "../shared/dialog.js";
import { $, element } from "../shared/dom.js";
import { formatTime } from "../shared/format.js";
import { plural, texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { action, attempt, badge, box, empty, factList, field, input, link, loading } from "./elements.js";
import { messageNode } from "./message.js";
import { money, number } from "./numbers.js";
import { sessionMenu } from "./session_actions.js";
import { follow } from "./stream.js";

const words = texts.console;
const AT_ONCE = 200;
const NEAR_END = 120;
const FOUND = "found-text";

class Transcript {
  /**
   * @param {HTMLElement} root
   * @param {string} id
   * @param {string | undefined} wanted The message to show first.
   */
  constructor(root, id, wanted) {
    this.root = root;
    this.id = id;
    this.wanted = wanted;
    /** @type {any[]} */
    this.messages = [];
    /** @type {Map<string, HTMLElement>} */
    this.nodes = new Map();
    this.firstShown = 0;
    this.head = element("header", "transcript-head");
    this.tools = element("div", "transcript-tools");
    this.earlier = action("plain", words.earlier, () => this.showEarlier());
    this.log = element("ol", "transcript");
    this.draft = element("div", "draft");
    this.draft.hidden = true;
    this.end = () => {};
  }

  async open() {
    this.root.append(loading());
    try {
      const { messages, ...session } = await get(`/api/sessions/${this.id}`);
      this.messages = messages;
      this.session = session;
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      return this.root.replaceChildren(link("#/sessions", words.backToList), empty(problem.message));
    }
    this.log.setAttribute("aria-label", words.transcript);
    this.root.replaceChildren(link("#/sessions", words.backToList, "back"), this.head, this.tools, this.earlier, this.log, this.draft, this.replyForm());
    this.showHead();
    this.showTools();
    const at = this.messages.findIndex((each) => each.id === this.wanted);
    this.firstShown = Math.max(0, Math.min(this.messages.length - AT_ONCE, at < 0 ? Infinity : at));
    this.showRange(this.firstShown, this.messages.length);
    this.earlier.hidden = this.firstShown === 0;
    if (at >= 0) this.jump(this.messages[at].id);
    else if (this.session.isRunning) this.goToEnd();
    this.follow();
  }

  close() {
    this.end();
    globalThis.CSS?.highlights?.delete(FOUND);
  }

  goToEnd() {
    const frame = $("content");
    frame.scrollTop = frame.scrollHeight;
  }

  /**
   * Changes what is shown. Who reads the end keeps it in view, and for everyone else nothing moves.
   * @param {() => void} change
   */
  keepingPlace(change) {
    const frame = $("content");
    const isAtEnd = frame.scrollHeight - frame.scrollTop - frame.clientHeight < NEAR_END;
    change();
    if (isAtEnd) this.goToEnd();
  }

  follow() {
    const last = this.messages.reduce((seq, each) => Math.max(seq, each.seq ?? 0), 0);
    this.end = follow(`/api/sessions/${this.id}/events?since=${last}`, {
      onEvent: (name, data) => this.onEvent(name, data),
      onRefused: () => {},
    });
  }

  /**
   * @param {string} name
   * @param {any} data
   */
  onEvent(name, data) {
    if (name === "message") this.keepingPlace(() => this.update(data));
    else if (name === "text") this.keepingPlace(() => this.showDraft(data.text));
    else if (name === "delta") this.keepingPlace(() => this.draft.append(data.text));
    else if (name === "gone") toast(words.sessionGone);
    else this.reloadHead();
    if (name === "delta") this.draft.hidden = false;
    if (name === "turn") this.showDraft("");
  }

  async reloadHead() {
    await attempt(async () => {
      this.session = await get(`/api/sessions/${this.id}`);
      this.showHead();
    });
  }

  /** @param {any} message New, or changed. */
  update(message) {
    const at = this.messages.findIndex((each) => each.id === message.id);
    if (message.role === "agent") this.showDraft("");
    if (at < 0) {
      this.messages.push(message);
      this.showRange(this.messages.length - 1, this.messages.length);
      this.showTools();
      return;
    }
    this.messages[at] = message;
    const old = this.nodes.get(message.id);
    if (!old) return;
    const isOpen = [...old.querySelectorAll("details")].map((each) => each.open);
    const fresh = this.node(message, this.messages[at - 1]);
    fresh.querySelectorAll("details").forEach((each, number_) => (each.open = isOpen[number_] ?? each.open));
    old.replaceWith(fresh);
  }

  /** @param {string} text */
  showDraft(text) {
    this.draft.hidden = text === "";
    this.draft.textContent = text;
  }

  /**
   * @param {any} message
   * @param {any} before
   */
  node(message, before) {
    const node = messageNode(message, before, this.id);
    this.nodes.set(message.id, node);
    return node;
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  showRange(from, to) {
    const fresh = [];
    for (let at = from; at < to; at += 1) fresh.push(this.node(this.messages[at], this.messages[at - 1]));
    if (from >= this.firstShown && this.log.childElementCount && from > this.firstShown) this.log.append(...fresh);
    else this.log.prepend(...fresh);
  }

  showEarlier() {
    const before = this.firstShown;
    this.firstShown = Math.max(0, before - AT_ONCE);
    const anchor = this.log.firstElementChild;
    this.showRange(this.firstShown, before);
    this.earlier.hidden = this.firstShown === 0;
    anchor?.scrollIntoView({ block: "start" });
  }

  /** @param {string} id */
  jump(id) {
    const at = this.messages.findIndex((each) => each.id === id);
    while (at < this.firstShown && this.firstShown > 0) this.showEarlier();
    const node = this.nodes.get(id);
    for (const each of this.log.querySelectorAll(".found")) each.classList.remove("found");
    node?.classList.add("found");
    node?.scrollIntoView({ block: "center" });
    node?.focus({ preventScroll: true });
  }

  showHead() {
    const session = /** @type {any} */ (this.session);
    const status = /** @type {keyof typeof words.sessionStatus} */ (session.status);
    const used = session.usage.inputTokens + session.usage.outputTokens;
    this.head.replaceChildren(
      box("h2", "", session.title || words.untitled),
      session.isRunning ? badge(words.running, "warn") : badge(words.sessionStatus[status], status === "error" ? "bad" : "neutral"),
      factList([
        [words.channel, session.channel],
        [words.agent, session.model ? `${session.agent} (${session.model})` : session.agent],
        [words.repository, session.repoId ?? "–"],
        [words.started, formatTime(session.createdAt)],
        [words.tokens, number(used)],
        [words.cost, money(session.usage.costMicros)],
        [words.key, element("code", "", session.key)],
        ...(session.statusInfo?.reason ? [/** @type {[string, string]} */ ([words.reason, `${session.statusInfo.reason} (${session.statusInfo.by ?? ""})`])] : []),
      ]),
      sessionMenu(session, () => this.reloadHead()),
    );
  }

  showTools() {
    if (this.tools.contains(document.activeElement)) return;
    const turns = this.messages.filter((each) => each.role === "user");
    const jump = element("select");
    jump.append(new Option(plural(words.turnCount, turns.length), ""));
    for (const [at, each] of turns.entries()) jump.append(new Option(`${at + 1}. ${(each.content.text ?? "").slice(0, 60)}`, each.id));
    jump.addEventListener("change", () => jump.value && this.jump(jump.value));
    this.tools.replaceChildren(field(words.jumpToTurn, jump), this.searchField(), action("plain", words.toEnd, () => this.goToEnd()));
  }

  searchField() {
    const wanted = input("search");
    const count = element("span", "fine");
    count.setAttribute("role", "status");
    let at = -1;
    /** @param {number} step */
    const move = (step) => {
      const text = wanted.value.trim().toLowerCase();
      const found = text ? this.messages.filter((each) => JSON.stringify(each.content).toLowerCase().includes(text)) : [];
      at = found.length ? (at + step + found.length) % found.length : -1;
      count.textContent = text ? `${at + 1} / ${found.length}` : "";
      if (at < 0) return;
      this.jump(found[at].id);
      for (const each of this.nodes.get(found[at].id)?.querySelectorAll("details") ?? []) each.open = true;
      highlight(this.nodes.get(found[at].id), text);
      wanted.focus();
    };
    wanted.addEventListener("input", () => {
      at = -1;
      globalThis.CSS?.highlights?.delete(FOUND);
    });
    wanted.addEventListener("keydown", (event) => event.key === "Enter" && move(event.shiftKey ? -1 : 1));
    return box("div", "search-inside", field(words.searchInside, wanted), action("plain", words.next, () => move(1)), count);
  }

  replyForm() {
    const text = element("textarea");
    text.rows = 3;
    const send = action("primary", words.sendReply, async () => {
      if (!text.value.trim()) return text.focus();
      const question = { title: words.replyTitle, text: words.replyText, confirm: words.sendReply };
      if (!(await askToConfirm(question))) return;
      const { isSent } = await call("POST", `/api/sessions/${this.id}/reply`, { text: text.value });
      text.value = "";
      toast(isSent ? words.replySent : words.replyStored);
    });
    const form = box("section", "reply", field(words.replyLabel, text), send);
    form.setAttribute("aria-label", words.replyLabel);
    return form;
  }
}

/**
 * Marks a text wherever a message has it. An old browser shows only which message it is.
 * @param {HTMLElement | undefined} node
 * @param {string} text In lower case.
 */
function highlight(node, text) {
  if (!node || !globalThis.CSS?.highlights) return;
  const ranges = [];
  const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const part = /** @type {Text} */ (walker.currentNode);
    const content = part.data.toLowerCase();
    for (let at = content.indexOf(text); at >= 0 && at + text.length <= part.length; at = content.indexOf(text, at + text.length)) {
      const range = new Range();
      range.setStart(part, at);
      range.setEnd(part, at + text.length);
      ranges.push(range);
    }
  }
  CSS.highlights.set(FOUND, new Highlight(...ranges));
}

/**
 * @param {HTMLElement} root
 * @param {string[]} path
 * @returns {import("./app.js").Shown}
 */
export function openTranscript(root, [id, messageId]) {
  const view = new Transcript(root, id, messageId);
  view.open();
  return { close: () => view.close() };
}
