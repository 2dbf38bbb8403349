// The client of the HTTP API. It uses the cookie of the page or a token, and nothing that a program could not use.

import { texts } from "./texts.js";

/** The token that requests carry. Without one, the cookie of the page says who is there. */
export const credentials = { token: "" };

/** @returns {Record<string, string>} */
export const authorization = () => (credentials.token ? { Authorization: `Bearer ${credentials.token}` } : {});

/** The API has refused a request. The message is the sentence for people. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0 if the gateway could not be reached.
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * Calls the API and returns the parsed answer, or null if it has none. Raises `ApiError`.
 * @param {"GET" | "POST" | "PATCH" | "DELETE"} method
 * @param {string} path
 * @param {object | Blob} [body]
 * @param {{unreachable?: string}} [options] The message if the gateway cannot be reached.
 * @returns {Promise<any>}
 */
export async function call(method, path, body = {}, { unreachable = texts.common.unreachable } = {}) {
  const isFile = body instanceof Blob;
  /** @type {RequestInit} */
  const request = { method, headers: { Accept: "application/json", ...authorization() }, cache: "no-store" };
  if (method !== "GET") {
    request.headers = { ...request.headers, "Content-Type": isFile ? "application/octet-stream" : "application/json" };
    request.body = isFile ? body : JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch {
    throw new ApiError(unreachable, 0);
  }
  const told = await parsed(answer);
  if (answer.ok) return told;
  throw new ApiError(told?.detail ?? told?.error ?? answer.statusText, answer.status);
}

/** @param {Response} answer */
async function parsed(answer) {
  try {
    return await answer.json();
  } catch {
    return null;
  }
}

/** @param {string} path */
export const get = (path) => call("GET", path);

/**
 * Puts values into a query. Those that are undefined or empty are left out.
 * @param {string} path
 * @param {Record<string, string | number | boolean | undefined>} values
 */
export function withQuery(path, values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== undefined && value !== "") query.set(name, String(value));
  return query.size ? `${path}?${query}` : path;
}

/**
 * Follows a stream of server-sent events. The browser connects again by itself, and goes on where it was.
 * @param {string} path
 * @param {Record<string, (data: any) => void>} handlers By the name of the event.
 * @param {(isOpen: boolean) => void} [onState] Called when the stream is open, and when it is lost.
 * @returns {() => void} Ends the stream.
 */
export function follow(path, handlers, onState = () => {}) {
  const source = new EventSource(path);
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data)));
  }
  source.addEventListener("open", () => onState(true));
  source.addEventListener("error", () => onState(false));
  return () => source.close();
}
