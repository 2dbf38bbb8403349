// Tokens and cost of the last days: as a plot, as a table, and as a file for spreadsheets.

import { get, withQuery } from "../../shared/api.js";
import { element } from "../../shared/dom.js";
import { fill, texts } from "../../shared/texts.js";
import { action, attempt, box, card, empty, field, loading, saveAs, select, table } from "../elements.js";
import { compact, money, number } from "../numbers.js";
import { barPlot } from "../plot.js";

const words = texts.console;
const MAX_SERIES = 5;
const DAY_MS = 86_400_000;
const WIDEST = 10_000;

/** @typedef {{inputTokens: number, cachedTokens: number, outputTokens: number, costMicros: number}} Counts */
/** @typedef {Counts & {day: string, person: string, model: string, agent: string}} Row */

/** @type {Record<string, (row: Row) => string>} */
const GROUPS = {
  person: (row) => row.person,
  agent: (row) => row.agent || words.unknown,
  model: (row) => row.model,
  all: () => words.total,
};

/** @param {HTMLElement} root */
export function open(root) {
  const by = select([["person", words.byPerson], ["agent", words.agent], ["model", words.byModel], ["all", words.inAll]], "person");
  const unit = select([["tokens", words.tokens], ["cost", words.cost]], "tokens");
  const days = select(["7", "14", "30"].map((count) => [count, fill(words.days, { count })]), "30");
  const body = box("div", "", loading());
  /** @type {Row[]} */
  let rows = [];
  let range = [""];
  const draw = () => {
    body.replaceChildren(...content(rows, range, by.value, unit.value));
    body.querySelector(".plot-frame")?.scrollBy(WIDEST, 0); // The newest days are at the right.
  };
  const load = () =>
    attempt(async () => {
      range = lastDays(Number(days.value));
      const found = await get(withQuery("/api/usage/history", { since: range[0], until: range[range.length - 1] }));
      rows = found.rows;
      draw();
      if (!found.isComplete) body.append(empty(words.moreUsage));
    });
  by.addEventListener("change", draw);
  unit.addEventListener("change", draw);
  days.addEventListener("change", load);
  const save = action("plain", words.csv, () => saveAs(new Blob([csvOf(rows)], { type: "text/csv" }), "usage.csv"));
  root.append(box("div", "filters", field(words.group, by), field(words.unit, unit), field(words.period, days), save), body);
  load();
  return {};
}

/** @param {number} count */
function lastDays(count) {
  const today = Date.now();
  return Array.from({ length: count }, (_, at) => new Date(today - (count - 1 - at) * DAY_MS).toISOString().slice(0, 10));
}

/**
 * @param {Row[]} rows
 * @param {string[]} days
 * @param {string} by
 * @param {string} unit
 */
function content(rows, days, by, unit) {
  if (!rows.length) return [empty(words.noUsage)];
  /** @type {(row: Row) => number} */
  const valueOf = unit === "cost" ? (row) => row.costMicros : (row) => row.inputTokens + row.outputTokens;
  const format = unit === "cost" ? money : number;
  const series = seriesOf(rows, days, GROUPS[by], valueOf);
  const title = `${unit === "cost" ? words.cost : words.tokens} · ${days[0]} – ${days[days.length - 1]}`;
  const legend = series.map((each, at) => box("li", "", element("i", `swatch series-${at}`), each.name));
  const plot = barPlot(title, days, series, unit === "cost" ? money : compact);
  const frame = box("div", "plot-frame", plot);
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", title);
  return [card(title, frame, box("ul", "legend", ...legend)), totals(rows, GROUPS[by]), perDay(days, series, format)];
}

/**
 * The largest groups, and one for all others.
 * @param {Row[]} rows
 * @param {string[]} days
 * @param {(row: Row) => string} groupOf
 * @param {(row: Row) => number} valueOf
 */
function seriesOf(rows, days, groupOf, valueOf) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const row of rows) sums.set(groupOf(row), (sums.get(groupOf(row)) ?? 0) + valueOf(row));
  const names = [...sums].sort((one, other) => other[1] - one[1]).map(([name]) => name);
  const shown = names.slice(0, MAX_SERIES);
  const all = names.length > MAX_SERIES ? [...shown, words.others] : shown;
  const series = all.map((name) => ({ name, values: days.map(() => 0) }));
  for (const row of rows) {
    const at = days.indexOf(row.day);
    const place = shown.indexOf(groupOf(row));
    if (at >= 0) series[place < 0 ? series.length - 1 : place].values[at] += valueOf(row);
  }
  return series;
}

/**
 * @param {Row[]} rows
 * @param {(row: Row) => string} groupOf
 */
function totals(rows, groupOf) {
  /** @type {Map<string, number[]>} */
  const sums = new Map();
  for (const row of rows) {
    const sum = sums.get(groupOf(row)) ?? [0, 0, 0, 0];
    sums.set(groupOf(row), [sum[0] + row.inputTokens, sum[1] + row.cachedTokens, sum[2] + row.outputTokens, sum[3] + row.costMicros]);
  }
  const sorted = [...sums].sort((one, other) => other[1][0] + other[1][2] - one[1][0] - one[1][2]);
  const cells = sorted.map(([name, [read, cached, written, cost]]) => [name, number(read), number(cached), number(written), money(cost)]);
  const heads = [words.name, words.inputTokens, words.cachedTokens, words.outputTokens, words.cost];
  return card(words.totals, table(words.totals, heads, cells, heads.length - 1));
}

/**
 * @param {string[]} days
 * @param {import("../plot.js").Series[]} series
 * @param {(value: number) => string} format
 */
function perDay(days, series, format) {
  const rows = days
    .map((day, at) => ({ day, cells: series.map((each) => each.values[at]) }))
    .filter(({ cells }) => cells.some(Boolean))
    .reverse()
    .map(({ day, cells }) => [element("time", "", day), ...cells.map(format)]);
  return card(words.perDay, table(words.perDay, [words.day, ...series.map((each) => each.name)], rows, series.length));
}

/** @param {Row[]} rows */
function csvOf(rows) {
  /** @type {(keyof Row)[]} */
  const columns = ["day", "person", "agent", "model", "inputTokens", "cachedTokens", "outputTokens", "costMicros"];
  return [columns, ...rows.map((row) => columns.map((name) => row[name]))].map((cells) => cells.map(csvCell).join(",")).join("\r\n");
}

/**
 * A spreadsheet would take a text that begins like this for a formula.
 * @param {string | number} value
 */
function csvCell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
