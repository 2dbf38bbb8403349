// Speech: records a voice message, which the gateway transcribes.

import { $, icon, label } from "../shared/dom.js";
import { formatDuration } from "../shared/format.js";
import { texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { addRecording } from "./attachments.js";

const MAX_SECONDS = 600;
const TYPES = ["audio/webm", "audio/ogg", "audio/mp4"];

/** @type {MediaRecorder | null} */
let recorder = null;
let startedAt = 0;
let timer = 0;

/** @param {boolean} transcribes Whether the gateway turns recordings into text. */
export function showRecorder(transcribes) {
  const isPossible = transcribes && Boolean(navigator.mediaDevices) && "MediaRecorder" in window;
  $("record").hidden = !isPossible;
}

export function listenToRecorder() {
  $("record").addEventListener("click", () => (recorder ? recorder.stop() : start()));
}

async function start() {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch {
    return toast(texts.chat.noMicrophone);
  }
  const mimeType = TYPES.find((type) => MediaRecorder.isTypeSupported(type));
  recorder = new MediaRecorder(stream, { mimeType });
  /** @type {Blob[]} */
  const parts = [];
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  recorder.addEventListener("stop", () => {
    for (const track of stream.getTracks()) track.stop();
    recorder = null;
    clearInterval(timer);
    draw();
    const type = (mimeType ?? "audio/webm").split(";")[0];
    addRecording(new File(parts, `voice.${type.split("/")[1]}`, { type }));
  });
  recorder.start();
  startedAt = Date.now();
  timer = setInterval(draw, 500);
  draw();
}

function draw() {
  const seconds = (Date.now() - startedAt) / 1000;
  if (recorder && seconds > MAX_SECONDS) return recorder.stop();
  $("record").classList.toggle("recording", Boolean(recorder));
  $("recorded").textContent = recorder ? formatDuration(seconds) : "";
  $("record").replaceChildren(icon(recorder ? "stop" : "microphone"));
  label($("record"), recorder ? texts.chat.stopRecording : texts.chat.record);
}
