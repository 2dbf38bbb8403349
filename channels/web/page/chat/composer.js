// The composer: the message box, and what can be put into it.

import { $, closest } from "../shared/dom.js";
import { texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { addFiles, addTextFile, hasAttachments, isUploading, onAttachments, takeAttachments } from "./attachments.js";
import { draftOf, keepDraft } from "./drafts.js";
import { isTooLong, sendMessage } from "./outbox.js";
import { state } from "./state.js";
import { complete, handleSuggestionKey, suggest } from "./suggestions.js";

const MAX_ROWS = 10;
// Pasted text of this length makes a message hard to read. A page of print has about 3,000 characters.
const LONG_PASTE = 6000;
const input = $("input", HTMLTextAreaElement);
const picker = $("picker", HTMLInputElement);

function submit() {
  const text = input.value.trim();
  if (!text && !hasAttachments()) return;
  if (isUploading()) return toast(texts.chat.stillUploading);
  if (isTooLong(text)) return toast(texts.chat.tooLong);
  input.value = "";
  keepDraft(state.active, "");
  const files = takeAttachments();
  resizeInput();
  sendMessage(text, { files });
}

export function resizeInput() {
  // Set by the `rows` attribute, because the content security policy forbids inline styles.
  input.rows = 1;
  while (input.scrollHeight > input.clientHeight + 1 && input.rows < MAX_ROWS) input.rows += 1;
  $("send", HTMLButtonElement).disabled = !input.value.trim() && !hasAttachments();
  suggest();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.isComposing) return;
  if (!$("suggestions").hidden && handleSuggestionKey(event)) return event.preventDefault();
  const wantsNewLine = event.shiftKey || matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || wantsNewLine) return;
  event.preventDefault();
  submit();
}

/**
 * Shows the draft of another session.
 * @param {number | null | undefined} before
 */
export function changeDraft(before) {
  // What a person has typed after "/new" is for the new session.
  const isForNew = state.textAtCommand === "" && input.value !== "";
  state.textAtCommand = null;
  keepDraft(before, isForNew ? "" : input.value);
  if (isForNew) keepDraft(state.active, input.value);
  else input.value = draftOf(state.active);
  resizeInput();
}

/** Shows the draft of the session on screen, unless the person is writing already. */
export function showDraft() {
  input.value ||= draftOf(state.active);
  resizeInput();
}

/** @param {string} text */
function insertText(text) {
  input.setRangeText(text, input.selectionStart, input.selectionEnd, "end");
  onInput();
  input.focus();
}

function onInput() {
  keepDraft(state.active, input.value);
  resizeInput();
}

export function focusInput() {
  if (matchMedia("(pointer: fine)").matches) input.focus();
}

/** @param {ClipboardEvent} event */
function onPaste(event) {
  const files = [...(event.clipboardData?.files ?? [])];
  const text = event.clipboardData?.getData("text/plain") ?? "";
  if (!files.length && text.length < LONG_PASTE && !wouldBeTooLong(text)) return;
  event.preventDefault();
  if (files.length) return addFiles(files);
  const isTooLongForMessage = wouldBeTooLong(text);
  addTextFile(text, !isTooLongForMessage);
  toast(isTooLongForMessage ? texts.chat.pastedAsFile : texts.chat.longTextAsFile);
}

/** @param {string} pasted */
function wouldBeTooLong(pasted) {
  const { value, selectionStart, selectionEnd } = input;
  return isTooLong(value.slice(0, selectionStart) + pasted + value.slice(selectionEnd));
}

/** @param {DragEvent} event */
function onDrag(event) {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  $("composer").classList.toggle("target", event.type === "dragover");
  if (event.type === "drop") addFiles(event.dataTransfer.files);
}

export function listenToComposer() {
  onAttachments(resizeInput, insertText);
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
    focusInput();
  });
  input.addEventListener("input", onInput);
  input.addEventListener("keydown", onKey);
  input.addEventListener("blur", () => ($("suggestions").hidden = true));
  input.addEventListener("paste", onPaste);
  $("suggestions").addEventListener("mousedown", (event) => {
    event.preventDefault(); // Keeps the focus in the message box.
    const row = closest(event, "li");
    if (row) complete(row);
  });
  $("attach").addEventListener("click", () => picker.click());
  picker.addEventListener("change", () => {
    addFiles(picker.files ?? []);
    picker.value = "";
    focusInput();
  });
  for (const type of /** @type {const} */ (["dragover", "dragleave", "drop"])) $("chat").addEventListener(type, onDrag);
  addEventListener("resize", resizeInput);
}
