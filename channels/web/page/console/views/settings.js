// The configuration: every value in effect and where it comes from. The safe ones can be changed.

import { call, get } from "../../shared/api.js";
import { askToConfirm } from "../../shared/dialog.js";
import { element } from "../../shared/dom.js";
import { fill, plural, texts } from "../../shared/texts.js";
import { toast } from "../../shared/toast.js";
import { action, attempt, badge, box, card, checkbox, debounced, diff as diffNode, empty, field, input, loading } from "../elements.js";
import { editorFor, shownValue } from "../setting.js";

const words = texts.console;

class SettingsView {
  /** @param {HTMLElement} root */
  constructor(root) {
    /** @type {Map<string, unknown>} */
    this.changes = new Map();
    this.found = /** @type {any} */ ({ settings: [], problems: [], warnings: [], version: "", path: "" });
    this.text = input("search");
    const [changed, onlySet] = checkbox(words.onlySet);
    const [safe, onlySafe] = checkbox(words.onlyChangeable);
    this.onlySet = onlySet;
    this.onlySafe = onlySafe;
    this.head = box("div", "", loading());
    this.body = element("div");
    this.bar = element("div", "change-bar");
    this.bar.hidden = true;
    this.text.addEventListener("input", debounced(() => this.draw()));
    onlySet.addEventListener("change", () => this.draw());
    onlySafe.addEventListener("change", () => this.draw());
    root.append(this.head, box("div", "filters", field(words.searchSettings, this.text), changed, safe), this.body, this.bar);
  }

  load() {
    return attempt(async () => {
      this.found = await get("/api/settings");
      this.showHead();
      this.draw();
    });
  }

  showHead() {
    const { path, problems, warnings } = this.found;
    const lines = [
      ...problems.map((/** @type {any} */ each) => box("li", "bad", `${each.key} ${each.message}`.trim(), each.hint && ` – ${each.hint}`)),
      ...warnings.map((/** @type {string} */ each) => element("li", "", each)),
    ];
    this.head.replaceChildren(
      box("p", "fine", path ? fill(words.settingsFile, { path }) : words.noFile),
      lines.length ? card(words.whatIsWrong, box("ul", "", ...lines)) : "",
    );
  }

  draw() {
    const wanted = this.text.value.trim().toLowerCase();
    const shown = this.found.settings.filter(
      (/** @type {any} */ each) =>
        (!this.onlySet.checked || each.origin !== "default") &&
        (!this.onlySafe.checked || each.isChangeable) &&
        (!wanted || `${each.key} ${each.description}`.toLowerCase().includes(wanted)),
    );
    /** @type {Map<string, any[]>} */
    const tables = new Map();
    for (const each of shown) {
      const name = each.key.split(".")[0];
      tables.set(name, [...(tables.get(name) ?? []), each]);
    }
    const cards = [...tables].map(([name, settings]) => card(`[${name}]`, box("dl", "settings-list", ...settings.map((each) => this.row(each)))));
    this.body.replaceChildren(...(cards.length ? cards : [empty(words.noSettings)]));
  }

  /** @param {any} setting */
  row(setting) {
    const origin = words.origin[/** @type {keyof typeof words.origin} */ (setting.origin)];
    const value = setting.isChangeable
      ? editorFor(setting, this.changes.get(setting.key), (next) => this.change(setting, next))
      : element("code", "", setting.reference || shownValue(setting.value));
    return box(
      "div",
      "setting",
      box(
        "dt",
        "",
        element("code", "", setting.key),
        badge(origin, setting.origin === "default" ? "neutral" : "good"),
        setting.needsRestart && badge(words.needsRestart, "warn"),
      ),
      box("dd", "", value, element("p", "fine", setting.description)),
    );
  }

  /**
   * @param {any} setting
   * @param {unknown} next
   */
  change(setting, next) {
    if (JSON.stringify(next) === JSON.stringify(setting.value)) this.changes.delete(setting.key);
    else this.changes.set(setting.key, next);
    this.bar.hidden = this.changes.size === 0;
    this.bar.replaceChildren(
      element("span", "", plural(words.changeCount, this.changes.size)),
      action("plain", words.discard, () => this.discard()),
      action("primary", words.preview, () => this.preview()),
    );
  }

  discard() {
    this.changes.clear();
    this.bar.hidden = true;
    this.draw();
  }

  async preview() {
    const body = { changes: Object.fromEntries(this.changes), version: this.found.version };
    const { diff, applied, restartNeeded, warnings } = await call("POST", "/api/settings/preview", body);
    const text = [
      applied.length ? fill(words.appliedNow, { keys: applied.join(", ") }) : "",
      restartNeeded.length ? fill(words.afterRestart, { keys: restartNeeded.join(", ") }) : "",
      ...warnings,
    ];
    const question = { title: words.applyTitle, text: text.filter(Boolean).join("\n"), confirm: words.apply };
    const isSure = await askToConfirm({ ...question, details: diffNode(diff) });
    if (!isSure) return;
    const result = await call("PATCH", "/api/settings", body);
    toast(result.restartNeeded.length ? fill(words.afterRestart, { keys: result.restartNeeded.join(", ") }) : words.applied);
    this.changes.clear();
    this.bar.hidden = true;
    await this.load();
  }
}

/** @param {HTMLElement} root */
export function open(root) {
  const view = new SettingsView(root);
  view.load();
  return {};
}
