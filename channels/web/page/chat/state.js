// What the page knows: the conversation, the connection and the messages that are not sent yet.

import { fill, texts } from "../shared/texts.js";

/** @typedef {{label: string, command: string, is_answer?: boolean}} Button */
/** @typedef {{name: string, size: number, url: string, kind?: string, media_type?: string}} FileLink */
/** @typedef {{ref: string, name: string, kind: string, media_type: string, size: number}} UploadedFile */
/** @typedef {{name: string, arguments: string, summary: string}} Command */

/**
 * @typedef {object} Session
 * @property {number} number
 * @property {string} id In the HTTP API.
 * @property {string} title
 * @property {number} messages
 * @property {string} updated_at
 * @property {boolean} is_active
 * @property {string} agent
 * @property {string | null} model
 */

/**
 * A message that has no acknowledgement yet.
 * @typedef {object} Message
 * @property {string} id
 * @property {string} text
 * @property {string} at
 * @property {boolean} [isQuiet] It was sent by a button. Its answer appears as a toast, not in the log.
 * @property {UploadedFile[]} [files]
 */

/**
 * An entry of the log.
 * @typedef {object} Item
 * @property {"user" | "reply" | "notice"} kind
 * @property {string} text
 * @property {string} at
 * @property {string} [html] The text as rendered by the server.
 * @property {string} [id] Of a message of the person.
 * @property {string} [key] Of a message that came live.
 * @property {string} [turn] Of an answer from the history.
 * @property {string} [replyTo]
 * @property {"pending" | "taken" | "failed" | "dropped"} [state] Of a message of the person.
 * @property {string} [problem]
 * @property {boolean} [canResend]
 * @property {boolean} [isRecorded] It is in the history.
 * @property {boolean} [isOld] It was on screen before the last history was requested.
 * @property {boolean} [isLive] It is still being written.
 * @property {number} [connection] The connection of a draft.
 * @property {Button[]} [buttons]
 * @property {boolean} [isQuestion]
 * @property {boolean} [isFailure]
 * @property {string} [details]
 * @property {boolean} [isAside] An answer to a message of another channel, which is in no transcript of this chat.
 * @property {FileLink} [file] The file that this entry is, of the agent.
 * @property {FileLink[]} [files] Of a message of the person.
 * @property {string} [plain] The text of such a message without the names of its files.
 * @property {boolean} [isEdited] The person is editing it.
 * @property {HTMLElement} [node]
 */

/** @param {string} text */
export const isCommand = (text) => /^[/!](?![/!])\S/.test(text);
export const RETRY = "/retry";
export const now = () => new Date().toISOString();

export const state = {
  /** @type {WebSocket | null} */
  socket: null,
  isOpen: false,
  attempt: 0,
  reconnectTimer: 0,
  connection: 0, // Counts connections. A draft of an earlier one may have been finished while we were offline.
  /** @type {Message[]} */
  outbox: [], // Messages without an acknowledgement, oldest first. Only the first one is ever in flight.
  /** @type {string | null} */
  inFlight: null,
  /** @type {Item[]} */
  items: [], // The entries of the log, in order.
  /** @type {Set<string>} */
  finished: new Set(), // Keys of complete answers; a late draft of one is ignored.
  /** @type {Set<string>} */
  awaiting: new Set(), // Ids of accepted messages without an answer.
  /** @type {string | null} */
  runningTurn: null, // The turn that has called a tool last, until it ends.
  /** @type {Map<string, string>} */
  quiet: new Map(), // Commands sent by a button, by id. Their answers appear as a toast, not in the log.
  /** @type {Session[]} */
  sessions: [],
  /** @type {number | null | undefined} */
  active: undefined, // Number of the session on screen; null without a session, undefined until the server has sent it.
  /** @type {Set<number>} */
  unread: new Set(),
  keepFrom: 0, // Index in `items`, set by a command. When the session changes, the items from here on stay.
  /** @type {string | null} */
  textAtCommand: null, // What was in the message box when the last command was sent, until the session changes.
  /** @type {Set<string>} */
  refetched: new Set(), // Keys of answers for which the history was requested because their question was missing.
  /** @type {Command[]} */
  commands: [],
  maxFrameBytes: 256 * 1024, // Until the server has sent its limits.
  maxTextChars: Infinity,
  isAtEnd: true,
};

/** @param {string | undefined} id */
export function userItem(id) {
  return state.items.find((item) => item.kind === "user" && item.id === id);
}

export function activeSession() {
  return state.sessions.find((session) => session.number === state.active);
}

export function isBusy() {
  return state.awaiting.size > 0 || state.runningTurn !== null || state.items.some((item) => item.isLive);
}

/**
 * @param {Set<string>} set
 * @param {string} value
 */
export function remember(set, value) {
  set.add(value);
  const [oldest] = set;
  if (set.size > 500) set.delete(oldest);
}

/** @param {Session} session */
export function titleOf(session) {
  return session.title || (session.messages ? fill(texts.chat.session, { number: session.number }) : texts.chat.newConversation);
}
