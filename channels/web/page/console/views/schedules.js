// The schedules of all chats: when they run, how the last runs ended, and pausing and running them.

import { call, get, withQuery } from "../../shared/api.js";
import { askToConfirm } from "../../shared/dialog.js";
import { element, replaceNodes } from "../../shared/dom.js";
import { formatTime } from "../../shared/format.js";
import { fill, texts } from "../../shared/texts.js";
import { action, attempt, badge, box, card, debounced, empty, factList, loading, refresh, table } from "../elements.js";
import { money, number } from "../numbers.js";

const words = texts.console;
const PAGE = 100;
const TONES = { active: "good", running: "warn", paused: "neutral", ended: "neutral", deleted: "neutral" };
const RUN_TONES = { failed: "bad", running: "warn", done: "good", delivered: "good" };

/** @param {HTMLElement} root */
export function open(root) {
  /** @type {Map<string, HTMLElement>} */
  const parts = new Map();
  const list = box("div", "", loading());
  const more = action("plain", words.next, () => {
    pages += 1;
    return load();
  });
  let pages = 1;
  more.hidden = true;
  root.append(list, more);

  /** Reads all pages that are shown. What has not changed stays as it is. */
  const load = () =>
    attempt(async () => {
      const found = [];
      let isLast = false;
      for (let page = 0; page < pages && !isLast; page += 1) {
        const { schedules } = await get(withQuery("/api/schedules", { limit: PAGE, after: found.at(-1)?.id ?? "" }));
        found.push(...schedules);
        isLast = schedules.length < PAGE;
      }
      const shown = found.map((each) => {
        const part = parts.get(each.id) ?? element("div");
        parts.set(each.id, part);
        refresh(part, each, () => [scheduleCard(each, load)]);
        return part;
      });
      replaceNodes(list, shown.length ? shown : [empty(words.noSchedules)]);
      more.hidden = isLast;
    });
  load();
  // A run begins and ends with a change of its session.
  const changed = debounced(load, 1000);
  return {
    /** @param {string} name */
    onEvent: (name) => (name === "reset" || name === "sessions") && changed(),
  };
}

/**
 * @param {any} schedule
 * @param {() => unknown} reload
 */
function scheduleCard(schedule, reload) {
  const path = `/api/schedules/${encodeURIComponent(schedule.id)}`;
  const state = /** @type {keyof typeof TONES} */ (schedule.state);
  /** @param {() => Promise<unknown>} work */
  const then = (work) => async () => {
    await work();
    await reload();
  };
  const isPaused = schedule.state === "paused";
  const pause = action("plain", isPaused ? words.resumeSchedule : words.pause, then(() => call("PATCH", path, { paused: !isPaused })));
  const remove = action("plain", words.delete, async () => {
    const question = { title: fill(words.deleteTitle, { title: titleOf(schedule) }), confirm: words.delete, isDangerous: true };
    if (await askToConfirm(question)) await then(() => call("DELETE", path))();
  });
  return card(
    titleOf(schedule),
    badge(words.scheduleState[state], /** @type {"good" | "warn" | "neutral"} */ (TONES[state])),
    schedule.note && element("p", "", schedule.note),
    factList([
      [words.when, schedule.when],
      [words.nextRun, schedule.nextAt ? formatTime(schedule.nextAt) : "–"],
      [words.chat, schedule.chat],
      [words.agent, schedule.agent ?? "–"],
      [words.failures, number(schedule.failures ?? 0)],
    ]),
    schedule.prompt && element("pre", "", schedule.prompt),
    box("div", "buttons", action("primary", words.runNow, then(() => call("POST", `${path}/run`))), pause, !schedule.name && remove),
    runsOf(path),
  );
}

/** @param {any} schedule */
const titleOf = ({ name, prompt, id }) => name ?? ((prompt ?? "").slice(0, 60) || id);

/** @param {string} path */
function runsOf(path) {
  const node = box("details", "call", element("summary", "", words.runs));
  node.addEventListener("toggle", () => {
    if (!node.open) return;
    attempt(async () => {
      const { runs } = await get(`${path}/runs`);
      const rows = runs.map((/** @type {any} */ run) => [
        formatTime(run.startedAt),
        badge(
          words.runState[/** @type {keyof typeof words.runState} */ (run.state)] ?? run.state,
          /** @type {"good"} */ (RUN_TONES[/** @type {keyof typeof RUN_TONES} */ (run.state)] ?? "neutral"),
        ),
        run.note ?? "",
        number(run.tokens ?? 0),
        money(run.costMicros ?? 0),
      ]);
      const heads = [words.started, words.status, words.details, words.tokens, words.cost];
      node.replaceChildren(element("summary", "", words.runs), rows.length ? table(words.runs, heads, rows, 2) : empty(words.noRuns));
    });
  });
  return node;
}
