// The side bar on narrow screens: a drawer above the chat.

import { $ } from "../shared/dom.js";

/** @param {boolean} isOpen */
export function openDrawer(isOpen) {
  $("drawer").classList.toggle("open", isOpen);
  $("scrim").hidden = !isOpen;
  $("drawer-open").setAttribute("aria-expanded", String(isOpen));
  $("chat").inert = isOpen;
  if (isOpen) $("new-chat").focus();
}

export function closeDrawer() {
  if (!$("drawer").classList.contains("open")) return;
  openDrawer(false);
  $("drawer-open").focus();
}
