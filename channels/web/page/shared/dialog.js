// Dialogs that ask one question. The browser keeps the focus in them, and Escape closes them.

import { button, element } from "./dom.js";
import { texts } from "./texts.js";

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {string} [text]
 * @property {HTMLElement} [details] Shown below the text.
 * @property {string} confirm The word on the button.
 * @property {boolean} [isDangerous] The button is red, and the focus is on the other one.
 */

let counter = 0;

/**
 * Asks, and resolves to whether the person has confirmed.
 * @param {Question} question
 * @returns {Promise<boolean>}
 */
export async function askToConfirm(question) {
  return (await ask(question, [])) === "confirm";
}

/**
 * Asks for a line of text, and resolves to it, or to null without an answer.
 * @param {Question & {label: string, value?: string, maxLength?: number}} question
 * @returns {Promise<string | null>}
 */
export async function askForText(question) {
  const field = element("input");
  field.value = question.value ?? "";
  field.maxLength = question.maxLength ?? 200;
  field.required = true;
  const frame = element("label", "field", "");
  frame.append(element("span", "", question.label), field);
  const answer = ask(question, [frame]);
  field.select();
  return (await answer) === "confirm" ? field.value.trim() || null : null;
}

/**
 * @param {Question} question
 * @param {HTMLElement[]} fields
 * @returns {Promise<string>}
 */
function ask(question, fields) {
  const dialog = element("dialog", "dialog");
  const form = element("form");
  form.method = "dialog";
  const title = element("h2", "", question.title);
  title.id = `dialog-${(counter += 1)}`;
  dialog.setAttribute("aria-labelledby", title.id);
  const cancel = button("plain", texts.common.cancel);
  const confirm = element("button", question.isDangerous ? "danger" : "primary", question.confirm);
  confirm.value = "confirm";
  cancel.addEventListener("click", () => dialog.close());
  cancel.autofocus = Boolean(question.isDangerous);
  const row = element("div", "dialog-buttons");
  row.append(cancel, confirm);
  form.append(title, ...(question.text ? [element("p", "", question.text)] : []), ...(question.details ? [question.details] : []), ...fields, row);
  dialog.append(form);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    }),
  );
}
