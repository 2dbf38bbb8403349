// Sizes and times in words.

import { language, plural, texts } from "./texts.js";

const numbers = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
const words = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });

/** @param {number} size */
export function formatSize(size) {
  if (size < 1000) return plural(texts.common.bytes, size);
  if (size < 1e6) return `${Math.round(size / 1e3)} kB`;
  return size < 1e9 ? `${numbers.format(size / 1e6)} MB` : `${numbers.format(size / 1e9)} GB`;
}

/** @param {string} at */
export function relativeTime(at) {
  const seconds = (Date.now() - Date.parse(at)) / 1000;
  if (seconds < 60) return texts.common.justNow;
  if (seconds < 3600) return words.format(-Math.floor(seconds / 60), "minute");
  if (seconds < 86400) return words.format(-Math.floor(seconds / 3600), "hour");
  return words.format(-Math.floor(seconds / 86400), "day");
}

/** @param {string} at */
export function formatTime(at) {
  return new Date(at).toLocaleString(language, { dateStyle: "medium", timeStyle: "short" });
}

/** @param {number} seconds */
export function formatDuration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
