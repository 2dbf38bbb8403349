// The agents with their tools, and the MCP servers: what is configured, and whether it works.

import { call, get } from "../../shared/api.js";
import { element } from "../../shared/dom.js";
import { formatTime } from "../../shared/format.js";
import { fill, plural, texts } from "../../shared/texts.js";
import { action, attempt, badge, box, card, empty, factList, field, loading, refresh, table } from "../elements.js";

const words = texts.console;

/** @param {HTMLElement} root */
export function open(root) {
  /** @type {Map<string, HTMLElement>} */
  const parts = new Map();
  const list = box("div", "", loading());
  const servers = element("div");
  root.append(list, servers);
  let trouble = "";

  const load = () =>
    attempt(async () => {
      const [found, mcp] = await Promise.all([get("/api/agents/details"), get("/api/mcp")]);
      for (const agent of found.agents) {
        const part = parts.get(agent.id) ?? element("div");
        if (!parts.has(agent.id)) list.append(part);
        parts.set(agent.id, part);
        // Arguments that are being typed are not thrown away.
        if (!part.contains(document.activeElement)) refresh(part, agent, () => [agentCard(agent)]);
      }
      list.querySelector(":scope > .fine")?.remove();
      refresh(servers, mcp.servers, () => [mcpCard(mcp.servers)]);
    });
  load();
  return {
    /**
     * @param {string} name
     * @param {any} data
     */
    onEvent(name, data) {
      const now = name === "overview" ? JSON.stringify([data.troubles, data.warnings, data.notes]) : trouble;
      if (name === "reset" || (trouble && now !== trouble)) load();
      trouble = now;
    },
  };
}

/** @param {any} agent */
function agentCard(agent) {
  const state = agent.trouble ? badge(words.troubled, "warn") : badge(words.works, "good");
  return card(
    agent.id,
    state,
    agent.trouble && element("p", "", agent.trouble),
    agent.lastError && element("p", "fine", fill(words.lastErrorAt, { error: agent.lastError, time: formatTime(agent.lastErrorAt) })),
    factList([
      [words.backend, agent.backend],
      [words.model, [agent.provider, agent.model].filter(Boolean).join("/")],
      [words.fallbacks, agent.fallbacks.join(", ") || "–"],
      [words.workspace, agent.workspace],
      [words.asksBefore, agent.ask.join(", ") || "–"],
      [words.mayAllow, agent.alwaysAllow.join(", ") || "–"],
      [words.skills, agent.skills.join(", ") || "–"],
    ]),
    element("h3", "", plural(words.toolCount, agent.tools.length)),
    ...agent.tools.map((/** @type {any} */ tool) => toolDetails(agent.id, tool)),
  );
}

/**
 * @param {string} agent
 * @param {any} tool
 */
function toolDetails(agent, tool) {
  const summary = box("summary", "", element("code", "", tool.name), tool.needsApproval && badge(words.asks, "warn"), tool.server && badge(tool.server));
  const node = box("details", "call", summary);
  // Most tools are never opened.
  node.addEventListener("toggle", () => node.open && node.childElementCount === 1 && node.append(...toolBody(agent, tool)), { once: true });
  return node;
}

/**
 * @param {string} agent
 * @param {any} tool
 */
function toolBody(agent, tool) {
  const schema = element("pre", "", JSON.stringify(tool.schema, null, 2));
  schema.tabIndex = 0;
  const args = element("textarea");
  args.rows = 4;
  args.spellcheck = false;
  args.value = JSON.stringify(exampleOf(tool.schema), null, 2);
  const result = element("div");
  result.setAttribute("role", "status");
  const run = action("primary", words.tryTool, async () => {
    const given = parsed(args.value);
    if (given === null) {
      result.replaceChildren(empty(words.notJson));
      return;
    }
    const trial = await call("POST", `/api/agents/${agent}/tools/${encodeURIComponent(tool.name)}/try`, { args: given });
    const output = element("pre", "", trial.output);
    output.tabIndex = 0;
    const state = badge(trial.isError ? words.failed : words.done, trial.isError ? "bad" : "good");
    result.replaceChildren(box("p", "", state, ` ${fill(words.seconds, { seconds: trial.seconds })}`), output);
  });
  return [element("p", "", tool.description), element("h4", "", words.args), schema, field(words.tryArgs, args), run, empty(words.tryHint), result];
}

/** @param {any} schema */
function exampleOf({ properties = {}, required = [] }) {
  /** @type {Record<string, any>} */
  const values = { string: "", integer: 0, number: 0, boolean: false, array: [], object: {} };
  return Object.fromEntries(required.map((/** @type {string} */ name) => [name, values[properties[name]?.type] ?? null]));
}

/** @param {string} text */
function parsed(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** @param {any[]} servers */
function mcpCard(servers) {
  const rows = servers.map((each) => [
    each.name,
    each.trouble ? badge(words.troubled, "bad") : badge(words.works, "good"),
    each.trouble || plural(words.toolCount, each.tools.length),
    each.leftOut.map((/** @type {any} */ tool) => `${tool.name}: ${tool.reason}`).join("; ") || "–",
  ]);
  const heads = [words.name, words.status, words.details, words.leftOut];
  return card(words.mcpServers, rows.length ? table(words.mcpServers, heads, rows) : empty(words.noServers));
}
