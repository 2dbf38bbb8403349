// One message of a transcript: a text, a tool call, a plan, a question or a file.

import { ApiError, call } from "../shared/api.js";
import { element } from "../shared/dom.js";
import { formatSize, formatTime } from "../shared/format.js";
import { fill, texts } from "../shared/texts.js";
import { action, badge, box, diff, link } from "./elements.js";
import { download, pictureUrl } from "./files.js";
import { clock, money, number, span } from "./numbers.js";

const words = texts.console;
const MAX_PICTURE = 3_000_000;
const LONG = 4_000;

/**
 * @param {any} message
 * @param {any} before The message before it, for the time in between.
 * @param {string} session
 */
export function messageNode(message, before, session) {
  const node = element("li", `message ${message.role} ${message.content.type}`);
  node.tabIndex = -1;
  const time = link(`#/sessions/${session}/${message.id}`, clock(message.timestamp), "permalink");
  time.title = `${formatTime(message.timestamp)} · ${words.permalink}`;
  const head = box("div", "message-head", element("b", "", roleOf(message)), time);
  if (message.schedule) head.append(badge(fill(words.bySchedule, { name: message.schedule })));
  const seconds = before ? (Date.parse(message.timestamp) - Date.parse(before.timestamp)) / 1000 : 0;
  if (message.role !== "user" && seconds >= 1) head.append(element("span", "fine", `+${span(seconds)}`));
  if (message.content.seconds >= 0.1) head.append(element("span", "fine", fill(words.took, { seconds: number(message.content.seconds) })));
  if (message.usage) head.append(element("span", "fine", costOf(message)));
  node.append(head, contentOf(message, session));
  return node;
}

/** @param {any} message */
function roleOf({ role, content, sender }) {
  if (content.type === "tool") return words.toolCall;
  if (content.type === "plan") return words.plan;
  if (content.type === "approval") return words.question;
  return sender || (words.role[/** @type {keyof typeof words.role} */ (role)] ?? role);
}

/** @param {any} message */
function costOf({ model, usage }) {
  const tokens = fill(words.stepTokens, { input: number(usage.inputTokens), output: number(usage.outputTokens) });
  return [model, tokens, usage.costMicros ? money(usage.costMicros) : ""].filter(Boolean).join(" · ");
}

/**
 * @param {any} message
 * @param {string} session
 * @returns {HTMLElement}
 */
function contentOf({ content, sessionId }, session) {
  if (content.type === "tool") return toolCall(content);
  if (content.type === "plan") return planOf(content);
  if (content.type === "approval") return questionOf(content, session || sessionId);
  if (content.type === "file") return fileOf(content.file);
  const text = box("div", content.isFailure ? "said failure" : "said", content.text);
  const files = (content.attachments ?? []).map(fileOf);
  return box("div", "", text, content.partial && badge(words.partial, "warn"), ...files);
}

/** @param {any} tool */
function toolCall({ tool, title, args, result, isError, diffs = [] }) {
  const state = result === null ? badge(words.running, "warn") : isError ? badge(words.failed, "bad") : badge(words.done, "good");
  const summary = box("summary", "", element("code", "", title ? `${tool}: ${title}` : tool), state);
  const parts = [element("h3", "", words.args), pre(JSON.stringify(args, null, 2))];
  if (result !== null) parts.push(element("h3", "", words.result), pre(result));
  for (const each of diffs) parts.push(element("h3", "", each.path), diff(each.diff));
  return box("details", "call", summary, ...parts);
}

/** @param {string} text */
function pre(text) {
  const node = element("pre", "", text.slice(0, LONG));
  node.tabIndex = 0;
  if (text.length <= LONG) return node;
  const more = action("plain", fill(words.showAll, { size: formatSize(text.length) }), () => {
    node.textContent = text;
    more.remove();
  });
  return box("div", "", node, more);
}

/** @param {{steps: {status: string, content: string}[]}} plan */
function planOf({ steps }) {
  /** @param {string} status */
  const named = (status) => words.planStatus[/** @type {keyof typeof words.planStatus} */ (status)] ?? status;
  const rows = steps.map(({ status, content }) => box("li", status, content, " ", badge(named(status), status === "completed" ? "good" : "neutral")));
  return box("ul", "plan", ...rows);
}

/**
 * @param {any} question
 * @param {string} session
 */
function questionOf({ approvalId, question, decision }, session) {
  const node = box("div", "asked", element("pre", "", question));
  if (decision) {
    const word = words.decision[/** @type {keyof typeof words.decision} */ (decision)] ?? decision;
    node.append(badge(word, decision === "approved" ? "good" : "neutral"));
    return node;
  }
  /** @param {"approve" | "deny"} answer */
  const decide = (answer) => call("POST", `/api/sessions/${session}/approvals/${approvalId}`, { decision: answer });
  node.append(
    box("div", "buttons", action("primary", words.approve, () => decide("approve")), action("plain", words.deny, () => decide("deny"))),
  );
  return node;
}

/** @param {any} file */
function fileOf({ name, url, size = 0, mediaType = "", kind }) {
  const node = box("div", "file", element("span", "", name), element("small", "fine", size ? formatSize(size) : ""));
  if (!url) return node;
  node.append(action("plain", words.download, () => download(url, name)));
  if (kind === "image" && size <= MAX_PICTURE && /^image\/(png|jpeg|gif|webp)$/.test(mediaType)) showPicture(node, url, mediaType, name);
  return node;
}

/**
 * Loads a picture once it is in view.
 * @param {HTMLElement} node
 * @param {string} url
 * @param {string} mediaType
 * @param {string} name
 */
function showPicture(node, url, mediaType, name) {
  const image = element("img", "picture");
  image.alt = name;
  node.prepend(image);
  const seen = new IntersectionObserver(async (entries) => {
    if (!entries.some((each) => each.isIntersecting)) return;
    seen.disconnect();
    try {
      image.src = await pictureUrl(url, mediaType);
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      image.remove();
    }
  });
  seen.observe(image);
}

