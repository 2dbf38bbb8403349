// A line of the log: when, how bad, what, and the rest of it.

import { element } from "../shared/dom.js";
import { formatTime } from "../shared/format.js";
import { badge, box } from "./elements.js";
import { clock } from "./numbers.js";

const TONES = { error: "bad", warning: "warn", info: "neutral", debug: "neutral" };

/** @param {any} line */
export function logLine({ at, level, event, fields }) {
  const time = element("time", "fine", clock(at));
  time.dateTime = at;
  time.title = formatTime(at);
  const tone = /** @type {"bad" | "warn" | "neutral"} */ (TONES[/** @type {keyof typeof TONES} */ (level)] ?? "neutral");
  // The spaces let the line break between its parts.
  const node = box("li", "log-line", time, " ", badge(level, tone), " ", element("strong", "", event));
  const { exception = "", ...rest } = parsed(fields);
  for (const [name, value] of Object.entries(rest)) {
    node.append(" ", box("span", "log-field", element("i", "", `${name}=`), typeof value === "string" ? value : JSON.stringify(value)));
  }
  if (exception) node.append(element("pre", "", String(exception)));
  return node;
}

/**
 * @param {string} fields
 * @returns {Record<string, any>}
 */
function parsed(fields) {
  try {
    return JSON.parse(fields);
  } catch {
    return { fields };
  }
}
