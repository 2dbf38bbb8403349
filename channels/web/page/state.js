// What the page knows: the conversation, the connection and the messages that are not sent yet.

export const isCommand = (text) => /^[/!](?![/!])\S/.test(text);
export const RETRY = "/retry";
export const now = () => new Date().toISOString();
export const state = {
  socket: null,
  isOpen: false,
  attempt: 0,
  reconnectTimer: 0,
  connection: 0, // Counts connections. A draft of an earlier one may have been finished while we were offline.
  outbox: [], // Messages without an acknowledgement, oldest first. Only the first one is ever in flight.
  inFlight: null,
  items: [], // The entries of the log, in order.
  finished: new Set(), // Keys of complete answers; a late draft of one is ignored.
  awaiting: new Set(), // Ids of accepted messages without an answer.
  quiet: new Map(), // Commands sent by a button, by id. Their answers appear as a toast, not in the log.
  sessions: [],
  active: undefined, // Number of the session on screen; null without a session, undefined until the server has sent it.
  unread: new Set(),
  keepFrom: 0, // Index in `items`, set by a command. When the session changes, the items from here on stay.
  refetched: new Set(), // Keys of answers for which the history was requested because their question was missing.
  commands: [],
  files: [], // Files for the next message. Each is uploaded at once, and has a `ref` after that.
  maxFrameBytes: 256 * 1024, // Until the server has sent its limits.
  maxTextChars: Infinity,
  selected: -1,
  isAtEnd: true,
};

export function userItem(id) {
  return state.items.find((item) => item.kind === "user" && item.id === id);
}

export function isBusy() {
  return state.awaiting.size > 0 || state.items.some((item) => item.isLive);
}

export function remember(set, value) {
  set.add(value);
  if (set.size > 500) set.delete(set.values().next().value);
}

export function titleOf(session) {
  return session.title || (session.messages ? `Session ${session.number}` : "New conversation");
}
