// The console: signs in, follows the gateway, and shows the view that the address names.

import { $, element, icon, setText } from "../shared/dom.js";
import { openMenu } from "../shared/menu.js";
import { signOut } from "../shared/sign_in.js";
import { languageItems, texts, translate } from "../shared/texts.js";
import { applyTheme, toggleTheme } from "../shared/theme.js";
import { attempt, loading } from "./elements.js";
import { enter, forgetToken, hasToken, leave } from "./sign_in.js";
import { follow } from "./stream.js";
import * as overview from "./views/overview.js";

/**
 * @typedef {object} Shown A view that is on the screen.
 * @property {(name: string, data: any) => void} [onEvent] An event of the gateway. After `reset`, everything may be new.
 * @property {() => void} [close]
 */

/**
 * @typedef {object} View
 * @property {string} icon
 * @property {() => Promise<{open: (root: HTMLElement, path: string[]) => Shown}>} load
 */

/**
 * The views, by their names in the address. To add one, write its module, name it here and in `texts.console.view`.
 * @type {Record<keyof typeof texts.console.view, View>}
 */
const VIEWS = {
  overview: { icon: "gate", load: async () => overview },
  sessions: { icon: "chat", load: () => import("./views/sessions.js") },
  people: { icon: "people", load: () => import("./views/people.js") },
  agents: { icon: "tool", load: () => import("./views/agents.js") },
  schedules: { icon: "retry", load: () => import("./views/schedules.js") },
  usage: { icon: "chart", load: () => import("./views/usage.js") },
  logs: { icon: "list", load: () => import("./views/logs.js") },
  settings: { icon: "settings", load: () => import("./views/settings.js") },
  system: { icon: "heart", load: () => import("./views/system.js") },
};

/** @type {{shown: Shown | null, opening: number, last: any}} */
const state = { shown: null, opening: 0, last: null };

function listViews() {
  const items = Object.entries(VIEWS).map(([name, view]) => {
    const node = element("a", "nav-link");
    node.href = `#/${name}`;
    node.append(icon(view.icon), element("span", "", texts.console.view[/** @type {keyof typeof VIEWS} */ (name)]));
    const count = element("b", "count");
    count.hidden = true;
    node.append(count);
    const item = element("li");
    item.append(node);
    return item;
  });
  $("views").append(...items);
}

async function show() {
  const [, name = "overview", ...path] = location.hash.replace(/^#\/?/, "/").split("/");
  const view = VIEWS[/** @type {keyof typeof VIEWS} */ (name)] ?? VIEWS.overview;
  const isKnown = Object.hasOwn(VIEWS, name);
  const title = texts.console.view[/** @type {keyof typeof VIEWS} */ (isKnown ? name : "overview")];
  const turn = (state.opening += 1);
  const nav = $("nav");
  if (nav.matches(":popover-open")) nav.hidePopover();
  for (const node of document.querySelectorAll("#views a")) {
    if (node.getAttribute("href") === `#/${isKnown ? name : "overview"}`) node.setAttribute("aria-current", "page");
    else node.removeAttribute("aria-current");
  }
  state.shown?.close?.();
  state.shown = null;
  document.title = `${title} · Gatehouse`;
  setText($("title"), title);
  const root = element("div", `view ${name}`);
  root.append(loading());
  $("content").replaceChildren(root);
  const module = await view.load();
  if (turn !== state.opening) return;
  root.replaceChildren();
  state.shown = module.open(root, path.filter(Boolean).map(decodeURIComponent));
  if (state.last) state.shown.onEvent?.("overview", state.last);
}

/**
 * @param {string} name
 * @param {any} data
 */
function onEvent(name, data) {
  if (name === "overview") {
    state.last = data;
    showCounts(data);
  }
  state.shown?.onEvent?.(name, data);
}

/** @param {any} data The overview. */
function showCounts(data) {
  const counts = { people: data.openApprovals + data.waitingPeople, logs: data.errorsLastHour };
  for (const [name, count] of Object.entries(counts)) {
    const node = document.querySelector(`#views a[href="#/${name}"] .count`);
    if (!(node instanceof HTMLElement)) continue;
    node.hidden = count === 0;
    setText(node, count > 99 ? "99+" : String(count));
  }
}

/** @param {boolean} isOpen */
function showConnection(isOpen) {
  const node = $("connection");
  node.classList.toggle("lost", !isOpen);
  setText(/** @type {Element} */ (node.lastElementChild), isOpen ? texts.console.live : texts.console.connecting);
}

function start() {
  document.getElementById("login")?.remove();
  $("app").hidden = false;
  showConnection(false);
  const stop = follow("/api/events", {
    onEvent,
    onState: showConnection,
    onRefused: (status) => {
      stop();
      state.shown?.close?.();
      state.shown = null;
      $("content").replaceChildren();
      leave(start, status === 403 ? texts.console.lacksAdmin : texts.console.accessEnded);
    },
  });
  show();
}

function openSettings() {
  openMenu($("settings"), texts.console.browser, [
    { label: texts.common.theme, icon: "moon", run: toggleTheme },
    ...languageItems(),
    { label: texts.common.signOut, run: () => attempt(endSession) },
  ]);
}

async function endSession() {
  if (hasToken()) forgetToken();
  else await signOut();
  location.reload();
}

applyTheme();
translate(document);
listViews();
addEventListener("hashchange", show);
$("settings").addEventListener("click", openSettings);
enter(start);
