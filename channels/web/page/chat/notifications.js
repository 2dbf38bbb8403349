// Notifications: tells a person who is looking elsewhere that a long answer is done.

import { load, save } from "../shared/storage.js";
import { texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";

const KEY = "gatehouse.notify";
const LONG_MS = 5000;
const MAX_CHARS = 160;

// Browsers offer them on pages served over TLS or from this machine only.
export const canNotify = () => "Notification" in window && isSecureContext;
export const wantsNotifications = () => canNotify() && load(KEY) === "on" && Notification.permission === "granted";

export async function toggleNotifications() {
  if (wantsNotifications()) return save(KEY, null);
  const isAllowed = (await Notification.requestPermission()) === "granted";
  save(KEY, isAllowed ? "on" : null);
  toast(isAllowed ? texts.chat.willNotify : texts.chat.mayNotNotify);
}

/**
 * @param {string} title
 * @param {string} text
 * @param {string | undefined} askedAt When the person asked, if that is known.
 */
export async function notifyOfAnswer(title, text, askedAt) {
  if (!document.hidden || !wantsNotifications()) return;
  if (askedAt && Date.now() - Date.parse(askedAt) < LONG_MS) return;
  const options = { body: text.slice(0, MAX_CHARS), icon: "/icon-192.png", tag: "gatehouse-answer" };
  // Phones show notifications of service workers only.
  const worker = await navigator.serviceWorker?.getRegistration();
  if (worker) return worker.showNotification(title, options);
  const notification = new Notification(title, options);
  notification.addEventListener("click", () => {
    window.focus();
    notification.close();
  });
}
