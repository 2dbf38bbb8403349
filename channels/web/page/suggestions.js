// Suggests commands while one is typed.

import { $, element } from "./dom.js";
import { state } from "./state.js";

export function suggest() {
  const typed = /^[/!](?![/!])([^\n]*)$/.exec($("input").value)?.[1].toLowerCase();
  const fitting = typed === undefined ? [] : state.commands.filter((one) => one.name.startsWith(typed));
  state.selected = -1;
  $("suggestions").replaceChildren(...fitting.map(suggestion));
  $("suggestions").hidden = fitting.length === 0;
  $("input").removeAttribute("aria-activedescendant");
}

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

// Returns true if the list has handled the key.
export function handleSuggestionKey(event) {
  const options = $("suggestions").children;
  if (event.key === "ArrowDown") select((state.selected + 1) % options.length);
  else if (event.key === "ArrowUp") select((Math.max(state.selected, 0) - 1 + options.length) % options.length);
  else if (event.key === "Escape") $("suggestions").hidden = true;
  else if (event.key === "Tab" && !event.shiftKey) complete(options[Math.max(state.selected, 0)]);
  else if (event.key === "Enter" && state.selected >= 0) complete(options[state.selected]);
  else return false;
  return true;
}

function select(place) {
  state.selected = place;
  [...$("suggestions").children].forEach((row, index) => row.setAttribute("aria-selected", String(index === place)));
  const row = $("suggestions").children[place];
  row.scrollIntoView({ block: "nearest" });
  $("input").setAttribute("aria-activedescendant", row.id);
}

export function complete(row) {
  const command = state.commands.find((one) => one.name === row.dataset.name);
  $("input").value = `/${command.name}${command.arguments ? " " : ""}`;
  $("input").focus();
  $("input").dispatchEvent(new Event("input"));
  $("suggestions").hidden = true;
}

export function onCommands(frame) {
  state.commands = frame.commands.map((command) => ({ ...command, name: command.name.replace(/^\//, "") }));
  suggest();
}
