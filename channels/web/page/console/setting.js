// The field in which one setting is changed.

import { element } from "../shared/dom.js";
import { texts } from "../shared/texts.js";
import { input, select } from "./elements.js";

const words = texts.console;

/** @param {unknown} value */
export function shownValue(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}

/**
 * @param {any} setting
 * @param {unknown} changed The value that was entered before, if any.
 * @param {(value: unknown) => void} onChange Null removes the key, so that its default applies.
 */
export function editorFor(setting, changed, onChange) {
  const value = changed === undefined ? setting.value : changed;
  const node = editor(setting, value);
  node.setAttribute("aria-label", setting.key);
  node.addEventListener("change", () => onChange(read(setting, node)));
  return node;
}

/**
 * @param {any} setting
 * @param {any} value
 */
function editor({ kind, choices = [], isOptional }, value) {
  if (kind === "flag") return select([["true", words.on], ["false", words.off]], String(value));
  if (kind === "choice") return select(choices.map((/** @type {string} */ each) => [each, each]), value);
  if (kind === "integer" || kind === "number") {
    const node = input("number", value === null ? "" : String(value));
    node.step = kind === "integer" ? "1" : "any";
    node.required = !isOptional;
    return node;
  }
  if (kind === "list") return input("text", (value ?? []).join(", "));
  if (typeof value === "string" && value.length > 60) {
    const node = element("textarea");
    node.rows = 4;
    node.value = value;
    return node;
  }
  return input("text", value ?? "");
}

/**
 * @param {any} setting
 * @param {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} node
 */
function read({ kind }, node) {
  const text = node.value.trim();
  if (kind === "flag") return text === "true";
  if (kind === "list") return text ? text.split(",").map((each) => each.trim()) : [];
  if (text === "") return null;
  return kind === "integer" || kind === "number" ? Number(text) : node.value;
}
