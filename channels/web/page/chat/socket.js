// The connection: reconnects with growing pauses.

import { $ } from "../shared/dom.js";
import { showSignIn, whoami } from "../shared/sign_in.js";
import { state } from "./state.js";
import { render } from "./view.js";

const BACKOFF_MS = [300, 600, 1200, 2500, 5000, 10000];

/** @typedef {Record<string, (frame: any) => void>} FrameHandlers By the type of the frame. */
/** @type {FrameHandlers} */
let handlers = {};

/**
 * Connects, and calls the handler of its type with each frame.
 * @param {FrameHandlers} frameHandlers
 */
export function openConnection(frameHandlers) {
  handlers = frameHandlers;
  connect();
}

function connect() {
  clearTimeout(state.reconnectTimer);
  if (state.socket) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const socket = new WebSocket(`${scheme}://${location.host}/web/ws`);
  state.socket = socket;
  socket.addEventListener("message", ({ data }) => receive(JSON.parse(data)));
  socket.addEventListener("close", () => onClose(socket));
}

/** @param {WebSocket} socket */
function onClose(socket) {
  if (state.socket !== socket) return;
  state.socket = null;
  state.isOpen = false;
  state.inFlight = null;
  render();
  const wait = BACKOFF_MS[Math.min(state.attempt, BACKOFF_MS.length - 1)] * (0.75 + Math.random() / 2);
  state.attempt += 1;
  state.reconnectTimer = setTimeout(reconnect, wait);
}

async function reconnect() {
  clearTimeout(state.reconnectTimer);
  if (state.socket) return;
  if ((await whoami()) === null) return showSignIn();
  connect();
}

export function reconnectNow() {
  if (!$("app").hidden && !state.socket) reconnect();
}

/** @param {{type: string}} frame */
export function receive(frame) {
  handlers[frame.type]?.(frame);
}

/** @param {{type: string}} frame */
export function sendFrame(frame) {
  if (state.isOpen) state.socket?.send(JSON.stringify(frame));
}
