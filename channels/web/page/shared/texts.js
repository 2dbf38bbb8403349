// The texts of the pages in the language of the reader. Each language is one file in `texts/`.

import en from "../texts/en.js";
import { load, save } from "./storage.js";

/** @typedef {typeof en} Texts */
/** @typedef {{one: string, other: string}} Forms A text for one thing, and for several. */

/** @type {Record<string, string>} */
export const LANGUAGES = { en: "English", de: "Deutsch" };

const LANGUAGE_KEY = "gatehouse.language";

export const language = findLanguage();

/** @type {Texts} */
export const texts = language === "en" ? en : (await import(`../texts/${language}.js`)).default;

function findLanguage() {
  const wanted = [load(LANGUAGE_KEY) ?? "", ...navigator.languages].map((tag) => tag.split("-")[0].toLowerCase());
  return wanted.find((tag) => Object.hasOwn(LANGUAGES, tag)) ?? "en";
}

/** Returns the items of a menu that chooses the language. The page is loaded again in the chosen one. */
export function languageItems() {
  return Object.entries(LANGUAGES).map(([tag, name]) => ({
    label: name,
    isChosen: tag === language,
    run: () => {
      save(LANGUAGE_KEY, tag);
      location.reload();
    },
  }));
}

/**
 * Puts values in the place of `{names}`.
 * @param {string} text
 * @param {Record<string, string | number>} values
 */
export function fill(text, values) {
  return text.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? String(values[name]) : whole));
}

const plurals = new Intl.PluralRules(language);
const numbers = new Intl.NumberFormat(language);

/**
 * Returns the form of a text that fits a number, with the number in the place of `{count}`.
 * @param {Forms} forms
 * @param {number} count
 * @param {Record<string, string | number>} [values]
 */
export function plural(forms, count, values = {}) {
  const form = plurals.select(count) === "one" ? forms.one : forms.other;
  return fill(form, { ...values, count: numbers.format(count) });
}

/**
 * Puts the texts into the elements below `root` that name them: `data-text="chat.newChat"` sets the content,
 * `data-label` the label, `data-placeholder` the placeholder. In a content, `code` is between backticks.
 * @param {Document | Element} root
 */
export function translate(root) {
  document.documentElement.lang = language;
  for (const node of root.querySelectorAll("[data-text], [data-label], [data-placeholder]")) {
    if (!(node instanceof HTMLElement)) continue;
    const { text, label, placeholder } = node.dataset;
    if (text) node.replaceChildren(...withCode(textNamed(text), node.dataset.keys === undefined ? "code" : "kbd"));
    if (label) node.setAttribute("aria-label", textNamed(label));
    if (label && node instanceof HTMLButtonElement) node.title = textNamed(label);
    if (placeholder) node.setAttribute("placeholder", textNamed(placeholder));
  }
}

/**
 * @param {string} name
 * @returns {string}
 */
function textNamed(name) {
  const found = name.split(".").reduce((/** @type {any} */ group, key) => group?.[key], texts);
  if (typeof found !== "string") throw new Error(`There is no text ${name}.`);
  return found;
}

/**
 * @param {string} text
 * @param {"code" | "kbd"} tag
 */
function withCode(text, tag) {
  return text.split("`").map((part, place) => {
    if (place % 2 === 0) return part;
    const node = document.createElement(tag);
    node.textContent = part;
    return node;
  });
}
