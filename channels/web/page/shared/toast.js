// A sentence that appears for a few seconds. It leaves nothing behind.

import { $ } from "./dom.js";

const SHOWN_MS = 4000;
let timer = 0;

/** @param {string} text */
export function toast(text) {
  clearTimeout(timer);
  $("toast").textContent = text;
  $("toast").hidden = false;
  timer = setTimeout(() => ($("toast").hidden = true), SHOWN_MS);
}
