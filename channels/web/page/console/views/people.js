// What waits for a decision: questions of agents, and people who ask for access. And what was decided before.

import { call, get } from "../../shared/api.js";
import { askToConfirm } from "../../shared/dialog.js";
import { element } from "../../shared/dom.js";
import { formatTime, relativeTime } from "../../shared/format.js";
import { fill, texts } from "../../shared/texts.js";
import { action, attempt, box, card, debounced, empty, factList, link, refresh, select, table } from "../elements.js";
import { money, number } from "../numbers.js";

const words = texts.console;

/** @param {HTMLElement} root */
export function open(root) {
  const parts = { approvals: element("div"), waiting: element("div"), guests: element("div"), grants: element("div"), roles: element("div") };
  root.append(parts.approvals, parts.waiting, parts.guests, parts.grants, parts.roles);

  const reloadApprovals = () =>
    attempt(async () => {
      const { approvals } = await get("/api/approvals");
      refresh(parts.approvals, approvals, () => [
        card(words.openQuestions, ...(approvals.length ? approvals.map(question) : [empty(words.noQuestions)])),
      ]);
    });

  const reloadPeople = () =>
    attempt(async () => {
      const paths = ["/api/people", "/api/roles", "/api/grants", "/api/usage"];
      const [people, { roles }, { grants }, usage] = await Promise.all(paths.map((path) => get(path)));
      const names = roles.map((/** @type {any} */ role) => role.name);
      refresh(parts.waiting, [people.waiting, names], () => [waitingCard(people.waiting, names, reloadPeople)]);
      const spent = new Map(usage.people.map((/** @type {any} */ each) => [each.person, each]));
      refresh(parts.guests, [people.guests, people.revoked, names, usage.people], () => guestCards(people, names, spent, reloadPeople));
      refresh(parts.grants, grants, () => [grantCard(grants, reloadPeople)]);
      refresh(parts.roles, roles, () => [roleCard(roles)]);
    });

  reloadApprovals();
  reloadPeople();
  const changed = { approvals: debounced(reloadApprovals), people: debounced(reloadPeople) };
  return {
    /** @param {string} name */
    onEvent(name) {
      if (name === "approvals" || name === "reset") changed.approvals();
      // A decision may also be one for good.
      if (name === "people" || name === "approvals" || name === "reset") changed.people();
    },
  };
}

/** @param {any} asked */
function question(asked) {
  const path = `/api/sessions/${asked.sessionId}/approvals/${asked.approvalId}`;
  /** @param {"approve" | "deny"} decision */
  const decide = (decision) => call("POST", path, { decision });
  const args = element("pre", "", JSON.stringify(asked.args, null, 2));
  args.tabIndex = 0;
  const node = box(
    "article",
    "asked",
    box("h3", "", element("code", "", asked.tool), asked.callTitle && ` ${asked.callTitle}`),
    factList([
      [words.session, link(`#/sessions/${asked.sessionId}`, asked.title || words.untitled)],
      [words.askedFor, asked.askerName ? `${asked.askerName} (${asked.asker})` : asked.asker],
      [words.agent, asked.agent],
      ...(asked.files.length ? [/** @type {[string, string]} */ ([words.files, asked.files.join(", ")])] : []),
    ]),
    args,
    element("p", "fine", `${words.workspace}: ${asked.workspace}`),
    box(
      "div",
      "buttons",
      action("primary", words.approve, () => decide("approve")),
      action("plain", words.deny, () => decide("deny")),
    ),
  );
  node.setAttribute("aria-label", asked.tool);
  return node;
}

/**
 * @param {any[]} waiting
 * @param {string[]} roles
 * @param {() => unknown} reload
 */
function waitingCard(waiting, roles, reload) {
  const rows = waiting.map((each) => {
    const role = roleChoice(roles, "member");
    const approve = () => call("POST", "/api/people/approve", { code: each.code, role: role.value }).then(reload);
    const deny = () => call("POST", "/api/people/deny", { code: each.code }).then(reload);
    return [
      each.name || "–",
      element("code", "", each.id),
      element("code", "", each.code),
      relativeTime(each.askedAt),
      box("div", "buttons", role, action("primary", words.approve, approve), action("plain", words.deny, deny)),
    ];
  });
  const heads = [words.name, words.id, words.code, words.asked, words.decide];
  return card(words.waitingPeople, rows.length ? table(words.waitingPeople, heads, rows) : empty(words.noneWaiting));
}

/**
 * @param {string[]} roles
 * @param {string} chosen
 */
function roleChoice(roles, chosen) {
  const all = roles.includes(chosen) ? roles : [...roles, chosen];
  const node = select(all.map((name) => [name, name]), chosen);
  node.setAttribute("aria-label", words.roleName);
  return node;
}

/** @param {any} used What someone has used today. */
function spentToday(used) {
  if (!used) return "–";
  return `${fill(words.tokenCount, { tokens: number(used.inputTokens + used.outputTokens) })} · ${money(used.costMicros)}`;
}

/**
 * @param {any} people
 * @param {string[]} roles
 * @param {Map<string, any>} spent
 * @param {() => unknown} reload
 */
function guestCards({ guests, revoked }, roles, spent, reload) {
  const rows = guests.map((/** @type {any} */ each) => {
    const role = roleChoice(roles, each.role);
    role.addEventListener("change", async () => {
      await attempt(() => call("POST", "/api/people/role", { id: each.id, role: role.value }));
      reload();
    });
    const revoke = action("plain", words.revoke, async () => {
      const ask = { title: fill(words.revokeTitle, { name: each.name || each.id }), text: words.revokeText };
      if (!(await askToConfirm({ ...ask, confirm: words.revoke, isDangerous: true }))) return;
      await call("POST", "/api/people/revoke", { id: each.id });
      reload();
    });
    return [each.name || "–", element("code", "", each.id), role, spentToday(spent.get(each.id)), formatTime(each.since), revoke];
  });
  const heads = [words.name, words.id, words.roleName, words.usedToday, words.since, words.decide];
  const past = revoked.map((/** @type {any} */ each) => [each.name || "–", element("code", "", each.id), formatTime(each.at)]);
  return [
    card(words.approvedPeople, rows.length ? table(words.approvedPeople, heads, rows) : empty(words.noneApproved)),
    past.length > 0 && card(words.revokedPeople, table(words.revokedPeople, [words.name, words.id, words.since], past)),
  ];
}

/**
 * @param {any[]} grants
 * @param {() => unknown} reload
 */
function grantCard(grants, reload) {
  const rows = grants.map((each) => [
    each.description,
    each.agent,
    element("code", "", each.sessionKey || each.person),
    formatTime(each.at),
    action("plain", words.revoke, () => call("DELETE", `/api/grants/${encodeURIComponent(each.id)}`).then(reload)),
  ]);
  const heads = [words.allowedCall, words.agent, words.allowedFor, words.since, words.decide];
  return card(words.grants, rows.length ? table(words.grants, heads, rows) : empty(words.noGrants));
}

/** @param {any} role */
function limitsOf({ tokensPerDay, tokensPerTurn, costPerDay }) {
  const turn = tokensPerTurn ? fill(words.tokensATurn, { tokens: number(tokensPerTurn) }) : "";
  const tokens = tokensPerDay ? fill(words.tokensADay, { tokens: number(tokensPerDay) }) : "";
  const cost = costPerDay ? fill(words.costADay, { cost: number(costPerDay) }) : "";
  return [tokens, turn, cost].filter(Boolean).join(", ");
}

/** @param {any[]} roles */
function roleCard(roles) {
  const rows = roles.map((each) => [
    each.isConfigured ? each.name : fill(words.goneRole, { name: each.name }),
    each.people.concat(each.chats, each.tokens).join(", ") || "–",
    each.tools === null ? words.all : each.tools.join(", ") || words.none,
    limitsOf(each) || "–",
  ]);
  return card(words.roles, table(words.roles, [words.roleName, words.holders, words.tools, words.limits], rows), empty(words.rolesHint));
}
