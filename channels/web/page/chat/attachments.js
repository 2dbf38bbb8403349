// The files for the next message: added by button, paste or drop, and uploaded at once.

import { ApiError, call, withQuery } from "../shared/api.js";
import { $, button, element, icon } from "../shared/dom.js";
import { formatSize } from "../shared/format.js";
import { fill, texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { miniature } from "./pictures.js";

/** @typedef {import("./state.js").UploadedFile} UploadedFile */
/** @typedef {{name: string, isLoading: boolean, stored?: UploadedFile, miniature?: string, text?: string}} Attachment */

/** @type {Attachment[]} */
let attachments = [];
let onChange = () => {};
let insertText = (/** @type {string} */ _text) => {};

/**
 * @param {() => void} changed Called when a file was added, has arrived or was removed.
 * @param {(text: string) => void} insert Called with a pasted text that goes into the message after all.
 */
export function onAttachments(changed, insert) {
  onChange = changed;
  insertText = insert;
}

export const isUploading = () => attachments.some((file) => file.isLoading);
export const hasAttachments = () => attachments.some((file) => file.stored);

/** Returns the uploaded files, and forgets them. */
export function takeAttachments() {
  const files = attachments.flatMap(({ stored }) => stored ?? []);
  change([]);
  return files;
}

/** @param {Iterable<File>} files */
export function addFiles(files) {
  for (const file of files) upload(file);
}

/**
 * @param {File} blob
 * @param {{kind?: string, media_type?: string}} [facts] What the gateway cannot see in the file.
 * @param {string} [text] Of pasted text that could be put into the message instead.
 */
async function upload(blob, facts = {}, text) {
  /** @type {Attachment} */
  const file = { name: blob.name || texts.chat.file, isLoading: true, text };
  change([...attachments, file]);
  miniature(blob).then((url) => {
    file.miniature = url;
    change(attachments);
  });
  try {
    file.stored = { ...(await call("POST", withQuery("/files", { name: file.name }), blob)), ...facts };
  } catch (problem) {
    const isRefused = problem instanceof ApiError && problem.status > 0;
    const words = isRefused ? fill(texts.chat.uploadRefused, { name: file.name, problem: problem.message }) : "";
    toast(words || fill(texts.chat.uploadFailed, { name: file.name }));
  }
  file.isLoading = false;
  change(attachments.filter((other) => other !== file || file.stored));
}

/** @param {Attachment[]} files */
function change(files) {
  attachments = files;
  $("files").replaceChildren(...attachments.map(chip));
  $("files").hidden = attachments.length === 0;
  onChange();
}

/** @param {Attachment} file */
function chip(file) {
  const node = element("li", file.isLoading ? "loading" : "");
  const remove = button("", "");
  remove.setAttribute("aria-label", fill(texts.chat.removeFile, { name: file.name }));
  remove.append(icon("close"));
  remove.addEventListener("click", () => change(attachments.filter((other) => other !== file)));
  const about = file.stored ? `${file.name} · ${formatSize(file.stored.size)}` : `${file.name} …`;
  if (file.miniature) {
    const image = element("img");
    image.alt = "";
    image.src = file.miniature;
    node.append(image);
  }
  node.append(element("span", "", about));
  if (file.text !== undefined) node.append(insertButton(file, file.text));
  node.append(remove);
  return node;
}

/**
 * Adds a recording, which the gateway transcribes.
 * @param {File} file
 */
export const addRecording = (file) => upload(file, { kind: "voice", media_type: file.type });

/**
 * Pasted text can still be put into the message.
 * @param {Attachment} file
 * @param {string} text
 */
function insertButton(file, text) {
  const node = button("insert", texts.chat.insertAsText);
  node.addEventListener("click", () => {
    change(attachments.filter((other) => other !== file));
    insertText(text);
  });
  return node;
}

/**
 * @param {string} text
 * @param {boolean} canInsert Whether it also fits into the message.
 */
export function addTextFile(text, canInsert) {
  upload(new File([text], newFileName(), { type: "text/plain" }), {}, canInsert ? text : undefined);
}

function newFileName() {
  const taken = new Set(attachments.map((file) => file.name));
  let number = 1;
  while (taken.has(`pasted-${number}.txt`)) number += 1;
  return `pasted-${number}.txt`;
}
