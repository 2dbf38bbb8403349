// The schedules of all chats: when they run, how the last runs ended, and pausing and running them.

import { call, get, withQuery } from "../../shared/api.js";
import { askToConfirm } from "../../shared/dialog.js";
import { element } from "../../shared/dom.js";
import { formatTime } from "../../shared/format.js";
import { fill, texts } from "../../shared/texts.js";
import { action, attempt, badge, box, card, empty, factList, loading, table } from "../elements.js";
import { money, number } from "../numbers.js";

const words = texts.console;
const PAGE = 100;
const TONES = { active: "good", running: "warn", paused: "neutral", ended: "neutral", deleted: "neutral" };
const RUN_TONES = { failed: "bad", running: "warn", done: "good", delivered: "good" };

/** @param {HTMLElement} root */
export function open(root) {
  const list = box("div", "", loading());
  const more = action("plain", words.next, () => load());
  let last = "";
  more.hidden = true;
  root.append(list, more);

  const load = () =>
    attempt(async () => {
      const { schedules } = await get(withQuery("/api/schedules", { limit: PAGE, after: last }));
      if (!last) list.replaceChildren(...(schedules.length ? [] : [empty(words.noSchedules)]));
      list.append(...schedules.map((/** @type {any} */ each) => scheduleCard(each, reload)));
      last = schedules.at(-1)?.id ?? last;
      more.hidden = schedules.length < PAGE;
    });
  const reload = () => {
    last = "";
    return load();
  };
  load();
  return {
    /** @param {string} name */
    onEvent: (name) => name === "reset" && reload(),
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
      node.replaceChildren(element("summary", "", words.runs), rows.length ? table(words.runs, heads, rows) : empty(words.noRuns));
    });
  });
  return node;
}
