// What one can do with a session.

import { call } from "../shared/api.js";
import { askForText, askToConfirm } from "../shared/dialog.js";
import { button } from "../shared/dom.js";
import { copyText } from "../shared/markdown.js";
import { openMenu } from "../shared/menu.js";
import { fill, texts } from "../shared/texts.js";
import { toast } from "../shared/toast.js";
import { attempt } from "./elements.js";
import { download, fetchFile } from "./files.js";

const words = texts.console;

/**
 * @param {any} session
 * @param {() => unknown} onChange
 */
export function sessionMenu(session, onChange) {
  const node = button("plain", words.actions);
  const path = `/api/sessions/${session.id}`;
  /** @param {() => Promise<unknown>} work */
  const run = (work) => () => attempt(work).then((isDone) => isDone && onChange());
  /** @param {string} name */
  const post = (name) => run(() => call("POST", `${path}/${name}`));
  node.addEventListener("click", () =>
    openMenu(node, words.actions, [
      { label: words.rename, icon: "edit", run: run(() => rename(session)) },
      ...(session.isRunning ? [{ label: words.stop, icon: "stop", run: post("stop") }] : []),
      ...(session.status === "active"
        ? [
            { label: words.complete, icon: "check", run: post("complete") },
            { label: words.cancelRun, icon: "close", run: run(() => call("DELETE", path)) },
          ]
        : [{ label: words.resume, icon: "retry", run: post("resume") }]),
      { label: words.copyMarkdown, icon: "copy", run: () => attempt(() => copyMarkdown(path)) },
      ...["markdown", "json", "jsonl"].map((format) => ({
        label: fill(words.exportAs, { format }),
        icon: "down",
        run: () => attempt(() => download(`${path}/export?format=${format}`, `${session.id}.${format === "markdown" ? "md" : format}`)),
      })),
      { label: words.archive, icon: "archive", run: () => leaveAfter(() => call("POST", `${path}/archive`)) },
      { label: words.delete, icon: "delete", isDangerous: true, run: () => remove(session) },
    ]),
  );
  return node;
}

/** @param {any} session */
async function rename(session) {
  const title = await askForText({ title: words.rename, label: words.titleLabel, value: session.title, confirm: words.save });
  if (title) await call("PATCH", `/api/sessions/${session.id}`, { title });
}

/** @param {string} path */
async function copyMarkdown(path) {
  const text = await (await fetchFile(`${path}/export?format=markdown`)).text();
  toast((await copyText(text)) ? texts.common.copied : words.notCopied);
}

/** @param {any} session */
async function remove(session) {
  const question = { title: fill(words.deleteTitle, { title: session.title || words.untitled }), text: words.deleteText };
  if (!(await askToConfirm({ ...question, confirm: words.delete, isDangerous: true }))) return;
  await leaveAfter(() => call("DELETE", `/api/sessions/${session.id}?permanent=true`));
}

/** @param {() => Promise<unknown>} work */
async function leaveAfter(work) {
  if (await attempt(work)) location.hash = "#/sessions";
}
