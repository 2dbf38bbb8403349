// The streams of events. `EventSource` sends no token, so they are read here.

import { authorization } from "../shared/api.js";

const RETRY_MS = 1000;
const MAX_RETRY_MS = 15_000;
const SILENCE_MS = 40_000;

/**
 * @typedef {object} Listener
 * @property {(name: string, data: any) => void} onEvent
 * @property {(isOpen: boolean) => void} [onState] Called when the stream opens and when it is lost.
 * @property {(status: number) => void} [onRefused] The gateway does not let this browser follow any more.
 */

/**
 * Follows a stream, and goes on where it was when the connection was lost.
 * @param {string} path
 * @param {Listener} listener
 * @returns {() => void} Ends the stream.
 */
export function follow(path, { onEvent, onState = () => {}, onRefused = () => {} }) {
  const stop = new AbortController();
  let last = "";
  let pause = RETRY_MS;

  async function run() {
    while (!stop.signal.aborted) {
      const status = await read();
      onState(false);
      if (stop.signal.aborted) return;
      if (status === 401 || status === 403 || status === 404) return onRefused(status);
      if (status === 422) last = "";
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(2 * pause, MAX_RETRY_MS);
    }
  }

  /** Reads until the connection is lost. Returns the status, or 0 if there was none. */
  async function read() {
    const silence = new AbortController();
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const headers = { ...authorization(), Accept: "text/event-stream", ...(last ? { "Last-Event-ID": last } : {}) };
      const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.any([stop.signal, silence.signal]) });
      if (!answer.ok || !answer.body) return answer.status;
      onState(true);
      pause = RETRY_MS;
      for await (const event of eventsOf(answer.body)) {
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        if (stop.signal.aborted) break;
        if (event.id) last = event.id;
        if (event.data) onEvent(event.name, JSON.parse(event.data));
      }
      return answer.status;
    } catch {
      return 0;
    } finally {
      clearTimeout(timer);
    }
  }

  run();
  return () => stop.abort();
}

/**
 * Reads the events of a body, and its comments as events without data.
 * @param {ReadableStream<Uint8Array>} body
 */
async function* eventsOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    yield* blocks.map(parsed);
  }
}

/** @param {string} block */
function parsed(block) {
  /** @type {Record<string, string>} */
  const fields = {};
  for (const line of block.split("\n")) {
    const [name, ...value] = line.split(": ");
    fields[name] = value.join(": ");
  }
  return { id: fields.id ?? "", name: fields.event ?? "message", data: fields.data ?? "" };
}
