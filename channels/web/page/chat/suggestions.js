// Suggests commands while one is typed.

import { $, element } from "../shared/dom.js";
import { state } from "./state.js";

/** @typedef {import("./state.js").Command} Command */

let selected = -1;
const input = $("input", HTMLTextAreaElement);

export function suggest() {
  const typed = /^[/!](?![/!])([^\n]*)$/.exec(input.value)?.[1].toLowerCase();
  const fitting = typed === undefined ? [] : state.commands.filter((one) => one.name.startsWith(typed));
  selected = -1;
  $("suggestions").replaceChildren(...fitting.map(suggestion));
  $("suggestions").hidden = fitting.length === 0;
  input.removeAttribute("aria-activedescendant");
}

/**
 * @param {Command} command
 * @param {number} place
 */
function suggestion(command, place) {
  const row = element("li");
  row.id = `suggestion-${place}`;
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", "false");
  row.dataset.name = command.name;
  const name = element("b", "", `/${command.name}`);
  if (command.arguments) name.append(" ", element("em", "", command.arguments));
  row.append(name, element("span", "", command.summary));
  return row;
}

/**
 * Returns true if the list has handled the key.
 * @param {KeyboardEvent} event
 */
export function handleSuggestionKey(event) {
  const options = /** @type {HTMLElement[]} */ ([...$("suggestions").children]);
  if (event.key === "ArrowDown") select((selected + 1) % options.length);
  else if (event.key === "ArrowUp") select((Math.max(selected, 0) - 1 + options.length) % options.length);
  else if (event.key === "Escape") $("suggestions").hidden = true;
  else if (event.key === "Tab" && !event.shiftKey) complete(options[Math.max(selected, 0)]);
  else if (event.key === "Enter" && selected >= 0) complete(options[selected]);
  else return false;
  return true;
}

/** @param {number} place */
function select(place) {
  selected = place;
  [...$("suggestions").children].forEach((row, index) => row.setAttribute("aria-selected", String(index === place)));
  const row = $("suggestions").children[place];
  row.scrollIntoView({ block: "nearest" });
  input.setAttribute("aria-activedescendant", row.id);
}

/** @param {HTMLElement} row */
export function complete(row) {
  const command = state.commands.find((one) => one.name === row.dataset.name);
  if (!command) return;
  input.value = `/${command.name}${command.arguments ? " " : ""}`;
  input.focus();
  input.dispatchEvent(new Event("input"));
  $("suggestions").hidden = true;
}

/** @param {{commands: Command[]}} frame */
export function onCommands(frame) {
  state.commands = frame.commands.map((command) => ({ ...command, name: command.name.replace(/^\//, "") }));
  suggest();
}
