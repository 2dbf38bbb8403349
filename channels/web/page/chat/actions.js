// What a person can do with a message: copy it, edit it and send it again, or have an answer written again.

import { ApiError, call } from "../shared/api.js";
import { button, closest, element, icon, label } from "../shared/dom.js";
import { copyText } from "../shared/markdown.js";
import { texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { sendMessage } from "./outbox.js";
import { activeSession, isBusy, isCommand, RETRY, state } from "./state.js";
import { render } from "./view.js";

/** @typedef {import("./state.js").Item} Item */

const SHOWN_MS = 1600;
const MAX_ROWS = 14;

/**
 * Returns the buttons below a message.
 * @param {Item} item
 * @param {boolean} isNewest Only the newest answer can be written again.
 */
export function actionsOf(item, isNewest) {
  const row = element("div", "actions");
  if (item.isLive || item.file || item.kind === "notice") return row;
  row.append(action("copy", texts.common.copy));
  if (canEdit(item)) row.append(action("edit", texts.chat.edit));
  if (canRegenerate(item, isNewest)) row.append(action("retry", texts.chat.regenerate));
  return row;
}

/** @param {Item} item */
export function canEdit(item) {
  return item.kind === "user" && item.state === "taken" && !item.files?.length && !isCommand(item.text) && !isBusy();
}

/**
 * @param {Item} item
 * @param {boolean} isNewest
 */
export function canRegenerate(item, isNewest) {
  return item.kind === "reply" && isNewest && !item.isLive && !item.isFailure && !item.isAside && !isBusy();
}

/**
 * @param {string} name Also the name of the icon.
 * @param {string} words
 */
function action(name, words) {
  const node = button("action", words, name);
  node.dataset.action = name;
  return node;
}

/**
 * Handles a click in the log.
 * @param {Event} event
 * @param {Item} item
 */
export function onAction(event, item) {
  const pressed = closest(event, ".action");
  if (pressed?.dataset.action === "copy") copyMessage(item, pressed);
  if (pressed?.dataset.action === "edit") edit(item);
  if (pressed?.dataset.action === "retry") regenerate();
}

/**
 * @param {Item} item
 * @param {HTMLElement} pressed
 */
async function copyMessage(item, pressed) {
  if (!(await copyText(item.text))) return toast(texts.chat.notCopied);
  pressed.replaceChildren(icon("check"));
  label(pressed, texts.common.copied);
  setTimeout(() => {
    pressed.replaceChildren(icon("copy"));
    label(pressed, texts.common.copy);
  }, SHOWN_MS);
}

/** The old answer goes at once. If the gateway does not write a new one, the history brings it back. */
function regenerate() {
  if (isBusy()) return toast(texts.chat.stillWriting);
  const question = state.items.findLastIndex((item) => item.kind === "user" && item.state === "taken" && !isCommand(item.text));
  state.items = state.items.filter((item, place) => place <= question || item.kind !== "reply");
  sendMessage(RETRY, { isQuiet: true });
}

/** @param {Item} item */
function edit(item) {
  item.isEdited = true;
  render();
}

/**
 * Returns the form in which a message is edited.
 * @param {Item} item
 */
export function editForm(item) {
  const form = element("form", "edit");
  const field = element("textarea");
  field.value = item.text;
  field.setAttribute("aria-label", texts.chat.editMessage);
  field.rows = Math.min(MAX_ROWS, item.text.split("\n").length + Math.floor(item.text.length / 60));
  const cancel = button("plain", texts.common.cancel);
  const send = element("button", "primary", texts.chat.send);
  const row = element("div", "edit-buttons");
  row.append(element("span", "fine", texts.chat.editHint), cancel, send);
  form.append(field, row);
  const close = () => {
    item.isEdited = false;
    render();
  };
  cancel.addEventListener("click", close);
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.target !== field) return;
    event.preventDefault();
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim()) sendEdited(item, field.value.trim(), send);
  });
  requestAnimationFrame(() => field.focus());
  return form;
}

/**
 * Undoes a message and everything after it, and sends another text in its place.
 * @param {Item} item
 * @param {string} text
 * @param {HTMLButtonElement} send
 */
async function sendEdited(item, text, send) {
  const session = activeSession();
  if (!session) return;
  send.disabled = true;
  try {
    await call("POST", `/api/sessions/${session.id}/undo`, { message: item.id });
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    send.disabled = false;
    return toast(problem.message);
  }
  const place = state.items.indexOf(item);
  state.items = state.items.filter((other, at) => at < place || other.state === "pending");
  sendMessage(text);
}
