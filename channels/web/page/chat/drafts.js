// Drafts: what a person has written in each session and not sent. They stay in this browser until the person signs out.

import { load, save } from "../shared/storage.js";

const KEY = "gatehouse.drafts";
const MAX_DRAFTS = 50;
const MAX_CHARS = 20_000;

/** @returns {Record<string, string>} By session. The newest is the last. */
function stored() {
  try {
    const drafts = JSON.parse(load(KEY) ?? "{}");
    return drafts && typeof drafts === "object" ? drafts : {};
  } catch {
    return {};
  }
}

/** @param {number | null | undefined} session */
const nameOf = (session) => `s${session ?? ""}`;

/** @param {number | null | undefined} session */
export function draftOf(session) {
  const draft = stored()[nameOf(session)];
  return typeof draft === "string" ? draft : "";
}

/**
 * @param {number | null | undefined} session
 * @param {string} text
 */
export function keepDraft(session, text) {
  const { [nameOf(session)]: _, ...others } = stored();
  const drafts = Object.entries(text ? { ...others, [nameOf(session)]: text.slice(0, MAX_CHARS) } : others);
  save(KEY, JSON.stringify(Object.fromEntries(drafts.slice(-MAX_DRAFTS))));
}

export function forgetDrafts() {
  save(KEY, null);
}
