// Who answers: the agent and the model of the session, and a menu that changes them.

import { ApiError, get } from "../shared/api.js";
import { $, icon, setText } from "../shared/dom.js";
import { openMenu } from "../shared/menu.js";
import { texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { sendMessage } from "./outbox.js";
import { activeSession } from "./state.js";

/** @typedef {{id: string, model: string | null, backend: string, models?: string[]}} Agent */

const picker = $("agent", HTMLButtonElement);

/** Shows who answers in the session on screen. */
export function drawPicker() {
  const session = activeSession();
  picker.hidden = !session?.agent;
  setText($("agent-name"), session ? [session.agent, session.model].filter(Boolean).join(" · ") : "");
}

/** @param {Agent} agent */
function agentItem(agent) {
  const session = activeSession();
  return {
    label: agent.id,
    note: agent.model ?? (agent.backend === "acp" ? texts.chat.codingAgent : texts.chat.rules),
    isChosen: agent.id === session?.agent,
    run: () => choose(`/agent ${agent.id}`),
  };
}

/**
 * @param {string} model
 * @param {Agent} agent
 */
function modelItem(model, agent) {
  const chosen = activeSession()?.model ?? agent.model;
  return { label: model, isChosen: model === chosen, run: () => choose(`/model ${model}`) };
}

/** @param {string} command */
function choose(command) {
  sendMessage(command, { isQuiet: true });
}

/**
 * @param {string} heading
 * @param {import("../shared/menu.js").MenuItem[]} items
 */
function withHeading(heading, items) {
  return items.map((item, place) => (place === 0 ? { ...item, heading } : item));
}

async function open() {
  /** @type {{agents: Agent[]}} */
  let found;
  try {
    found = await get("/api/agents");
  } catch (problem) {
    if (!(problem instanceof ApiError)) throw problem;
    return toast(problem.message);
  }
  const current = found.agents.find((agent) => agent.id === activeSession()?.agent);
  const models = current?.models ?? [];
  const agents = found.agents.length > 1 || !models.length ? found.agents.map(agentItem) : [];
  const items = current ? models.map((model) => modelItem(model, current)) : [];
  openMenu(picker, texts.chat.whoAnswers, [...withHeading(texts.chat.agents, agents), ...withHeading(texts.chat.models, items)]);
}

export function listenToPicker() {
  picker.append(icon("expand"));
  picker.addEventListener("click", open);
}
