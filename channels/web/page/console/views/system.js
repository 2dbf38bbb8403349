// The installation: versions and figures, the doctor, backups, reload and restart.

import { call } from "../../shared/api.js";
import { askToConfirm } from "../../shared/dialog.js";
import { element } from "../../shared/dom.js";
import { formatSize, formatTime } from "../../shared/format.js";
import { fill, plural, texts } from "../../shared/texts.js";
import { toast } from "../../shared/toast.js";
import { action, badge, box, card, checkbox, empty, factList, loading, refresh, table } from "../elements.js";
import { download } from "../files.js";
import { number, span } from "../numbers.js";

const words = texts.console;
const TONES = /** @type {const} */ ({ ok: "good", warning: "warn", error: "bad" });

/** @param {HTMLElement} root */
export function open(root) {
  const figures = box("div", "", loading());
  root.append(figures, actionCard(), doctorCard());
  return {
    /**
     * @param {string} name
     * @param {any} data
     */
    onEvent(name, data) {
      if (name === "overview") refresh(figures, { ...data, takenAt: 0 }, () => [versions(data), models(data)]);
    },
  };
}

/** @param {any} data */
function versions(data) {
  const { storage } = data;
  /** @param {Record<string, number>} counts */
  const states = (counts) => Object.entries(counts).map(([state, count]) => stateText(state, count)).join(", ") || "–";
  return card(
    words.versions,
    factList([
      ["Gatehouse", data.version],
      ["Python", data.python],
      [words.storage, [storage.engine, storage.database, storage.schema].filter(Boolean).join(" · ")],
      [words.startedAt, formatTime(data.startedAt)],
      [words.uptime, span(data.uptimeSeconds)],
      [words.memory, formatSize(data.memoryBytes)],
      [words.processor, span(data.cpuSeconds)],
      [words.openFiles, number(data.openFiles)],
      [words.diskFree, data.diskFreeBytes === null ? "–" : formatSize(data.diskFreeBytes)],
      [words.spoolMessages, states(storage.messages)],
      [words.spoolReplies, states(storage.replies)],
      [words.slowCommits, number(storage.slowCommits)],
    ]),
  );
}

/**
 * @param {string} state
 * @param {number} count
 */
function stateText(state, count) {
  return fill(words.rowState[/** @type {keyof typeof words.rowState} */ (state)] ?? `{count} ${state}`, { count: number(count) });
}

/** @param {any} data */
function models(data) {
  const rows = data.models.map((/** @type {any} */ each) => [
    each.name,
    number(each.requests),
    each.failuresInARow ? badge(plural(words.failuresInARow, each.failuresInARow), "bad") : number(each.failed),
    fill(words.seconds, { seconds: number(each.meanSeconds) }),
    each.mostWithinSeconds === null ? "–" : fill(words.seconds, { seconds: number(each.mostWithinSeconds) }),
  ]);
  const heads = [words.model, words.requests, words.failures, words.mean, words.mostWithin];
  return card(words.models, rows.length ? table(words.models, heads, rows, 4) : empty(words.noRequests));
}

function actionCard() {
  const backup = action("plain", words.backup, async () => {
    toast(words.backupStarted);
    await download("/api/backup", `gatehouse-${new Date().toISOString().slice(0, 10)}.tar`);
  });
  const reload = action("plain", words.reload, async () => {
    const { applied, restartNeeded } = await call("POST", "/api/reload");
    const keys = [...applied, ...restartNeeded];
    toast(keys.length ? fill(words.reloaded, { keys: keys.join(", ") }) : words.nothingChanged);
  });
  const restart = action("danger", words.restart, async () => {
    const isSure = await askToConfirm({ title: words.restartTitle, text: words.restartText, confirm: words.restart, isDangerous: true });
    if (isSure) toast((await call("POST", "/api/restart")).detail);
  });
  return card(words.maintenance, box("div", "buttons", backup, reload, restart), empty(words.backupHint));
}

function doctorCard() {
  const [label, hasPeers] = checkbox(words.callPeers);
  const result = element("div");
  result.setAttribute("role", "status");
  const examine = action("primary", words.examine, async () => {
    result.replaceChildren(empty(words.examining));
    show(await call("POST", "/api/doctor", { peers: hasPeers.checked }));
  });
  /** @param {any} report */
  function show({ findings, repaired }) {
    const order = ["error", "warning", "ok"];
    const sorted = [...findings].sort((one, other) => order.indexOf(one.level) - order.indexOf(other.level));
    const canRepair = findings.some((/** @type {any} */ each) => each.canBeRepaired);
    const repair = action("primary", words.repair, async () => show(await call("POST", "/api/doctor/repair")));
    result.replaceChildren(
      repaired.length ? empty(plural(words.repaired, repaired.length)) : "",
      box("ul", "findings", ...sorted.map(finding)),
      canRepair ? repair : "",
    );
  }
  return card(words.doctor, box("div", "filters", label, examine), result);
}

/** @param {any} found */
function finding({ about, level, message, fix }) {
  const tone = TONES[/** @type {keyof typeof TONES} */ (level)];
  const word = words.findingLevel[/** @type {keyof typeof words.findingLevel} */ (level)];
  return box("li", "", badge(word, tone), element("strong", "", about), ` ${message}`, fix && element("p", "fine", fix));
}
