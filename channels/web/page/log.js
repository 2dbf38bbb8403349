// Draws the entries of the log. Only the server's sanitised HTML is inserted as HTML; everything else is inserted as text.

import { $, element, formatSize, icon, replaceNodes } from "./dom.js";
import { isCommand, RETRY, state } from "./state.js";

export function drawLog() {
  const newest = state.items.findLastIndex((item) => item.kind === "user" && item.state !== "dropped" && !isCommand(item.text));
  const nodes = state.items.map((item, place) => {
    item.node ??= element("article", "item");
    drawItem(item, place > newest);
    return item.node;
  });
  replaceNodes($("log"), nodes);
}

// Only the newest answer can be retried.
function drawItem(item, isNewest) {
  const canRetry = Boolean(item.isFailure) && isNewest;
  const look = [item.kind, item.text, item.html, item.state, item.isLive, item.problem, item.at, state.isOpen, item.isFailure, canRetry];
  if (item.node.look?.every((value, place) => value === look[place])) return;
  item.node.look = look;
  item.node.className = ["item", item.kind, item.state, item.isLive && "live", item.isFailure && "failure"].filter(Boolean).join(" ");
  item.node.setAttribute("aria-busy", String(Boolean(item.isLive)));
  const body = item.node.querySelector(":scope > .body") ?? item.node.appendChild(element("div", "body"));
  if (item.file) drawFile(body, item.file);
  else if (item.html === undefined || item.html === null) body.textContent = item.text;
  else drawProse(body, item);
  drawExtras(item, canRetry);
}

function drawProse(body, item) {
  body.classList.add("prose");
  const fresh = document.createElement("template");
  fresh.innerHTML = item.html;
  if (!item.isLive) fresh.content.querySelectorAll("pre").forEach(addCopyButton);
  fresh.content.querySelectorAll("table").forEach(addTableFrame);
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

function drawExtras(item, canRetry) {
  for (const extra of item.node.querySelectorAll(":scope > :not(.body)")) extra.remove();
  if (item.isFailure && item.details) item.node.append(detailsElement(item.details));
  if (item.buttons?.length) item.node.append(buttonRow(item.buttons));
  if (canRetry) item.node.append(buttonRow([{ label: "Try again", command: RETRY }]));
  if (item.state === "dropped") item.node.append(droppedState(item));
  if (item.kind === "user" && item.state === "failed") item.node.append(element("span", "state", item.problem));
  if (item.kind === "user" && item.state === "pending") item.node.append(element("span", "state", pendingText()));
  else if (!item.isLive) item.node.append(timeElement(item.at));
}

// Drawn once: a picture that is replaced flickers, and a recording stops.
function drawFile(body, file) {
  if (body.dataset.file === file.url) return;
  body.dataset.file = file.url;
  const link = downloadLink(file);
  const kind = file.media_type?.split("/")[0];
  if (kind === "image") body.replaceChildren(picture(file, link));
  else if (kind === "audio") body.replaceChildren(player(link), link);
  else body.replaceChildren(link);
}

function downloadLink({ name, size, url }) {
  const link = element("a", "download");
  link.href = new URL(url, location.origin).pathname + new URL(url, location.origin).search;
  link.download = name;
  link.append(icon("file"), element("span", "", name), element("small", "", formatSize(size)));
  return link;
}

// A picture is its own link. One that is no longer stored, or that the browser can't show, is a link with its name.
function picture({ name }, link) {
  const shown = link.cloneNode();
  const image = element("img");
  shown.className = "picture";
  image.alt = name;
  image.src = link.href;
  image.addEventListener("error", () => shown.replaceWith(link));
  // Its height was not known when the log was scrolled to the end.
  image.addEventListener("load", () => state.isAtEnd && ($("scroller").scrollTop = $("scroller").scrollHeight));
  shown.append(image);
  return shown;
}

function player(link) {
  const audio = element("audio");
  audio.controls = true;
  audio.preload = "metadata";
  audio.src = link.href;
  return audio;
}

function pendingText() {
  return state.isOpen ? "Sending" : "Will be sent after reconnecting";
}

function detailsElement(details) {
  const node = element("details");
  node.append(element("summary", "", "Details"), element("pre", "", details));
  return node;
}

function droppedState(item) {
  const note = element("span", "state", "Not answered: you stopped it");
  if (item.canResend) {
    const button = element("button", "resend", "Send again");
    button.type = "button";
    note.append(" · ", button);
  }
  return note;
}

function buttonRow(buttons) {
  const row = element("div", "buttons");
  for (const button of buttons) {
    const node = element("button", "", button.label);
    node.type = "button";
    node.dataset.command = button.command;
    row.append(node);
  }
  return row;
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

// A wide table scrolls in its frame, with the arrow keys as well.
function addTableFrame(table) {
  const frame = element("div", "table");
  frame.tabIndex = 0;
  table.replaceWith(frame);
  frame.append(table);
}

export async function copy(button) {
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
