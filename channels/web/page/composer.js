// The composer: the message box, and the files for the next message. Files are uploaded before the message is sent.

import { $, element, formatSize, icon, toast } from "./dom.js";
import { isTooLong, sendMessage } from "./outbox.js";
import { state } from "./state.js";
import { handleSuggestionKey, suggest } from "./suggestions.js";

export function submit() {
  const text = $("input").value.trim();
  const files = state.files.filter((file) => file.ref).map(({ ref, name, kind, media_type, size }) => ({ ref, name, kind, media_type, size }));
  if (!text && !files.length) return;
  if (state.files.some((file) => file.isLoading)) return toast("A file is still uploading. Send the message when it's done.");
  if (isTooLong(text)) return toast("This message is too long. Cut out a part and paste it again, and it's sent as a file.");
  $("input").value = "";
  state.files = [];
  drawFiles();
  resizeInput();
  sendMessage(text, { files });
}

export function resizeInput() {
  const input = $("input");
  // Set by the `rows` attribute, because the content security policy forbids inline styles.
  input.rows = 1;
  while (input.scrollHeight > input.clientHeight + 1 && input.rows < 10) input.rows += 1;
  $("send").disabled = !input.value.trim() && !state.files.some((file) => file.ref);
  suggest();
}

export function onKey(event) {
  if (event.isComposing) return;
  if (!$("suggestions").hidden && handleSuggestionKey(event)) return event.preventDefault();
  const wantsNewLine = event.shiftKey || matchMedia("(pointer: coarse)").matches;
  if (event.key !== "Enter" || wantsNewLine) return;
  event.preventDefault();
  submit();
}

export function focusInput() {
  if (matchMedia("(pointer: fine)").matches) $("input").focus();
}

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
  const text = event.clipboardData.getData("text/plain");
  if (!files.length && !wouldBeTooLong(text)) return;
  event.preventDefault();
  if (files.length) return addFiles(files);
  addFiles([new File([text], newFileName(), { type: "text/plain" })]);
  toast("The pasted text is too long for a message, so it's attached as a file.");
}

function wouldBeTooLong(pasted) {
  const { value, selectionStart, selectionEnd } = $("input");
  return isTooLong(value.slice(0, selectionStart) + pasted + value.slice(selectionEnd));
}

function newFileName() {
  const taken = new Set(state.files.map((file) => file.name));
  let number = 1;
  while (taken.has(`pasted-${number}.txt`)) number += 1;
  return `pasted-${number}.txt`;
}

function onDrag(event) {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  $("composer").classList.toggle("target", event.type === "dragover");
  if (event.type === "drop") addFiles(event.dataTransfer.files);
}

export function listenForFiles() {
  $("attach").addEventListener("click", () => $("picker").click());
  $("picker").addEventListener("change", () => {
    addFiles([...$("picker").files]);
    $("picker").value = "";
  });
  $("input").addEventListener("paste", onPaste);
  for (const type of ["dragover", "dragleave", "drop"]) $("chat").addEventListener(type, onDrag);
}
