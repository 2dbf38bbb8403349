// Numbers, spans of time and money, in the language of the reader.

import { language } from "../shared/texts.js";

const numbers = new Intl.NumberFormat(language, { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 });
const cents = new Intl.NumberFormat(language, { minimumFractionDigits: 2, maximumFractionDigits: 2 });

/** @param {number} value */
export const number = (value) => numbers.format(value);

/** @param {number} value */
export const compact = (value) => short.format(value);

/**
 * A cost. The currency is that of the configured prices, so it has no sign.
 * @param {number} micros
 */
export function money(micros) {
  return micros > 0 && micros < 10_000 ? "< 0.01" : cents.format(micros / 1e6);
}

/** @param {number} seconds */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** @param {string} at */
export const clock = (at) => new Date(at).toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
