// What is going on now: readiness, channels, running turns, queues, errors and cost.

import { call } from "../../shared/api.js";
import { element } from "../../shared/dom.js";
import { formatSize, relativeTime } from "../../shared/format.js";
import { fill, plural, texts } from "../../shared/texts.js";
import { action, badge, box, card, empty, factList, link, loading, refresh, table } from "../elements.js";
import { logLine } from "../log_line.js";
import { money, number, span } from "../numbers.js";

const words = texts.console;

/** @param {HTMLElement} root */
export function open(root) {
  const parts = { state: element("div"), turns: element("div"), figures: element("div"), channels: element("div"), errors: element("div") };
  parts.state.append(loading());
  root.append(parts.state, box("div", "columns", box("div", "", parts.turns, parts.channels), box("div", "", parts.figures, parts.errors)));
  return {
    /**
     * @param {string} name
     * @param {any} data
     */
    onEvent(name, data) {
      if (name !== "overview") return;
      const { ready, state, troubles, warnings, notes, channels, turns, turnsRunning, lastErrors, nodes } = data;
      refresh(parts.state, [ready, state, troubles, warnings, notes], () => readiness(data));
      const more = turnsRunning - turns.length;
      refresh(parts.turns, [turns, more], () => [
        card(words.runningTurns, turns.length ? turnList(turns) : empty(words.noTurns), more > 0 && empty(plural(words.moreTurns, more))),
      ]);
      refresh(parts.channels, [channels, nodes], () => [channelTable(channels), nodes.length > 0 && nodeTable(nodes)]);
      const steady = { ...data, takenAt: 0, cpuSeconds: 0, uptimeSeconds: Math.floor(data.uptimeSeconds / 60) };
      refresh(parts.figures, steady, () => [figures(data)]);
      refresh(parts.errors, [data.errorsLastHour, lastErrors], () => [errors(data)]);
    },
  };
}

/** @param {any} data */
function readiness({ ready, state, troubles, warnings, notes }) {
  const tone = ready ? (warnings.length ? "warn" : "good") : "bad";
  const label = words.readiness[/** @type {keyof typeof words.readiness} */ (state)] ?? state;
  const lines = [...troubles, ...warnings, ...notes].map((text) => element("li", "", text));
  return [box("section", `readiness ${tone}`, element("strong", "", label), lines.length > 0 && box("ul", "", ...lines))];
}

/** @param {any[]} turns */
function turnList(turns) {
  const rows = turns.map((turn) => {
    const activity = words.activity[/** @type {keyof typeof words.activity} */ (turn.activity)] ?? turn.activity;
    const what = turn.detail ? `${activity}: ${turn.detail}` : activity;
    const about = [turn.channel, turn.agent, turn.node].filter(Boolean).join(" · ");
    return box(
      "li",
      "turn",
      link(`#/sessions/${turn.sessionId}`, turn.title || words.untitled),
      element("span", "turn-state", `${what} · ${span(turn.seconds)}`),
      element("small", "fine", about),
      action("plain small", words.stop, () => call("POST", `/api/sessions/${turn.sessionId}/stop`)),
    );
  });
  return box("ul", "plain-list", ...rows);
}

/** @param {any[]} channels */
function channelTable(channels) {
  const rows = channels.map((each) => {
    const name = each.account === "default" ? each.name : `${each.name}/${each.account}`;
    const trouble = each.reason || (each.lastError ? fill(words.lastError, { error: each.lastError }) : "");
    const seen = each.lastEventAt ? relativeTime(each.lastEventAt) : words.never;
    return [name, badge(stateOf(each.state), each.state === "up" ? "good" : "bad"), seen, trouble];
  });
  return card(words.channels, table(words.channels, [words.channel, words.status, words.lastMessage, words.details], rows));
}

/** @param {string} state */
const stateOf = (state) => words.channelState[/** @type {keyof typeof words.channelState} */ (state)] ?? state;

/** @param {any[]} nodes */
function nodeTable(nodes) {
  const rows = nodes.map((each) => [each.name, each.isThis ? words.thisNode : each.address]);
  return card(words.nodes, table(words.nodes, [words.name, words.address], rows));
}

/** @param {any} data */
function figures(data) {
  const tokens = data.usageToday.inputTokens + data.usageToday.outputTokens;
  const waiting = data.openApprovals + data.waitingPeople;
  return card(
    words.figures,
    factList([
      [words.waitsForYou, link("#/people", plural(words.things, waiting))],
      [words.costToday, link("#/usage", `${money(data.usageToday.costMicros)} · ${fill(words.tokenCount, { tokens: number(tokens) })}`)],
      [words.messagesWaiting, fill(words.ofAtMost, { count: number(data.messagesWaiting), limit: number(data.queueLimit) })],
      [words.repliesWaiting, number(data.repliesWaiting)],
      [words.sessionsInAll, link("#/sessions", number(data.sessions))],
      [words.spool, data.storage.spoolBytes === null ? words.noAnswer : formatSize(data.storage.spoolBytes)],
      [words.uptime, span(data.uptimeSeconds)],
      [words.memory, formatSize(data.memoryBytes)],
    ]),
  );
}

/** @param {any} data */
function errors({ errorsLastHour, lastErrors }) {
  const lines = lastErrors.map((/** @type {any} */ line) => logLine(line));
  const all = link("#/logs", plural(words.errorCount, errorsLastHour));
  return card(words.errorsLastHour, lines.length ? box("ol", "log-lines", ...lines) : empty(words.noErrors), lines.length > 0 && all);
}
