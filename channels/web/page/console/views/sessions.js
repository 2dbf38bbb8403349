// The sessions of all channels, filtered, and the transcript of one.

import { ApiError, call, get, withQuery } from "../../shared/api.js";
import { element } from "../../shared/dom.js";
import { relativeTime } from "../../shared/format.js";
import { plural, texts } from "../../shared/texts.js";
import { action, attempt, badge, box, checkbox, debounced, empty, field, input, link, select } from "../elements.js";
import { money } from "../numbers.js";
import { openTranscript } from "../transcript.js";
import { ListWindow } from "../window.js";

const words = texts.console;
const STATUSES = /** @type {const} */ (["active", "completed", "cancelled", "error"]);
const TONES = { active: "good", completed: "neutral", cancelled: "neutral", error: "bad" };
const ROW_HEIGHT = 64;

/** What was chosen stays when one comes back from a transcript. */
const filters = { q: "", chat: "", channel: "", agent: "", status: "", repoId: "", archived: false };
let scrolledTo = 0;

/**
 * @param {HTMLElement} root
 * @param {string[]} path The id of a session, and that of a message in it.
 * @returns {import("../app.js").Shown}
 */
export function open(root, path) {
  return path.length ? openTranscript(root, path) : openList(root);
}

/** @param {HTMLElement} root */
function openList(root) {
  const total = element("p", "fine");
  total.setAttribute("role", "status");
  const list = new ListWindow(words.view.sessions, ROW_HEIGHT, {
    read: async (offset, limit) => {
      const found = await get(withQuery("/api/sessions", { ...filters, archived: filters.archived || undefined, offset, limit }));
      return { rows: found.sessions, total: found.total };
    },
    show: row,
    onTotal: (count) => (total.textContent = plural(words.sessionCount, count)),
  });
  const hits = element("div");
  const reload = () => attempt(() => list.restart());
  root.append(filterForm(reload, hits), total, hits, list.root);
  attempt(() => list.refresh()).then(() => (list.root.scrollTop = scrolledTo));
  const changed = debounced(() => attempt(() => list.refresh()), 400);
  return {
    /** @param {string} name */
    onEvent: (name) => (name === "sessions" || name === "reset") && changed(),
    close() {
      scrolledTo = list.root.scrollTop;
      list.close();
    },
  };
}

/** @param {any} session */
function row(session) {
  const about = [session.channel, session.agent, session.repoId, plural(words.messageCount, session.messageCount)];
  if (session.usage.costMicros) about.push(money(session.usage.costMicros));
  // An archived session is brought back before it can be read.
  const node = filters.archived ? element("div", "session-row") : link(`#/sessions/${session.id}`, null, "session-row");
  node.append(
    box("span", "session-title", session.title || words.untitled),
    box("span", "session-about fine", `${about.filter(Boolean).join(" · ")} · ${session.key}`),
    filters.archived ? restoreButton(session.id) : stateOf(session),
    element("time", "session-time fine", relativeTime(session.updatedAt)),
  );
  return node;
}

/** @param {any} session */
function stateOf(session) {
  const status = /** @type {keyof typeof TONES} */ (session.status);
  if (session.isRunning) return badge(words.running, "warn");
  return badge(words.sessionStatus[status], /** @type {"good" | "bad" | "neutral"} */ (TONES[status]));
}

/** @param {string} id */
function restoreButton(id) {
  return action("plain", words.restore, async () => {
    await call("POST", `/api/sessions/${id}/restore`);
    location.hash = `#/sessions/${id}`;
  });
}

/**
 * @param {() => void} reload
 * @param {HTMLElement} hits
 */
function filterForm(reload, hits) {
  const changed = debounced(reload);
  /**
   * @template {HTMLInputElement | HTMLSelectElement} T
   * @param {T} control
   * @param {"q" | "chat" | "channel" | "agent" | "status" | "repoId"} name
   */
  const bound = (control, name) => {
    control.value = filters[name];
    control.addEventListener("input", () => {
      filters[name] = control.value.trim();
      changed();
    });
    return control;
  };
  /** @type {[string, string][]} */
  const statuses = [["", words.all], ...STATUSES.map((each) => /** @type {[string, string]} */ ([each, words.sessionStatus[each]]))];
  const [archived, isArchived] = checkbox(words.archived, filters.archived);
  isArchived.addEventListener("change", () => {
    filters.archived = isArchived.checked;
    reload();
  });
  const channel = bound(select([["", words.all]]), "channel");
  const agent = bound(select([["", words.all]]), "agent");
  const repo = bound(select([["", words.all]]), "repoId");
  fillChoices(channel, agent, repo);
  const form = box(
    "form",
    "filters",
    field(words.titleWords, bound(input("search"), "q")),
    field(words.person, bound(input("search"), "chat")),
    field(words.channel, channel),
    field(words.agent, agent),
    field(words.repository, repo),
    field(words.status, bound(select(statuses), "status")),
    archived,
    messageSearch(hits),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  return form;
}

/**
 * @param {HTMLSelectElement} channel
 * @param {HTMLSelectElement} agent
 * @param {HTMLSelectElement} repo
 */
async function fillChoices(channel, agent, repo) {
  await attempt(async () => {
    const [{ channels }, { agents }, { repos }] = await Promise.all([
      get("/api/overview?local=true"),
      get("/api/agents"),
      get("/api/repos"),
    ]);
    const names = new Set(["api", ...channels.map((/** @type {any} */ each) => each.name)]);
    addChoices(channel, [...names].sort(), filters.channel);
    addChoices(agent, agents.map((/** @type {any} */ each) => each.id), filters.agent);
    addChoices(repo, repos.map((/** @type {any} */ each) => each.id), filters.repoId);
  });
}

/**
 * @param {HTMLSelectElement} node
 * @param {string[]} names
 * @param {string} chosen
 */
function addChoices(node, names, chosen) {
  for (const name of names) node.append(new Option(name, name));
  node.value = chosen;
}

/** @param {HTMLElement} hits */
function messageSearch(hits) {
  const wanted = input("search");
  const search = debounced(async () => {
    const q = wanted.value.trim();
    if (!q) return hits.replaceChildren();
    try {
      const found = await get(withQuery("/api/search", { q, limit: 30, channel: filters.channel, agent: filters.agent }));
      if (wanted.value.trim() === q) hits.replaceChildren(hitList(found));
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      hits.replaceChildren(empty(problem.message));
    }
  });
  wanted.addEventListener("input", search);
  return field(words.inMessages, wanted);
}

/** @param {any} found */
function hitList({ hits, isComplete }) {
  const rows = hits.map((/** @type {any} */ hit) =>
    box(
      "li",
      "",
      link(`#/sessions/${hit.sessionId}`, hit.title || words.untitled),
      hit.isArchived && badge(words.archived),
      element("p", "hit", hit.text),
      element("small", "fine", `${words.role[/** @type {keyof typeof words.role} */ (hit.role)]} · ${relativeTime(hit.timestamp)}`),
    ),
  );
  const node = box("section", "panel hits", element("h2", "", plural(words.hitCount, hits.length)), box("ul", "plain-list", ...rows));
  if (!isComplete) node.append(empty(words.moreHits));
  return node;
}
