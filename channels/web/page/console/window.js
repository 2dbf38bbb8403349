// A list of any length: only the rows that are in view exist. Their data is read in pages when they come into view.

import { element, replaceNodes } from "../shared/dom.js";

const PAGE = 100;
const MAX_PAGES = 30;
const SPARE = 8;

/**
 * @template T
 * @typedef {object} Source
 * @property {(offset: number, limit: number) => Promise<{rows: T[], total: number}>} read
 * @property {(row: T) => HTMLElement} show
 * @property {(total: number) => void} onTotal
 */

/**
 * @template T
 */
export class ListWindow {
  /**
   * @param {string} label
   * @param {number} rowHeight In pixels, as in the style sheet.
   * @param {Source<T>} source
   */
  constructor(label, rowHeight, source) {
    this.rowHeight = rowHeight;
    this.source = source;
    this.total = 0;
    /** @type {Map<number, T[]>} */
    this.pages = new Map();
    /** @type {Set<number>} */
    this.asked = new Set();
    this.version = 0;
    this.root = element("div", "window");
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "region");
    this.root.setAttribute("aria-label", label);
    this.list = element("ul", "window-rows");
    this.root.append(this.list);
    this.root.addEventListener("scroll", () => this.draw(), { passive: true });
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.root);
  }

  /** Reads the rows in view again. Those that are shown stay until the new ones have come. */
  async refresh() {
    this.version += 1;
    this.asked.clear();
    const version = this.version;
    const first = this.#firstPage();
    const { rows, total } = await this.source.read(first * PAGE, PAGE);
    if (version !== this.version) return;
    this.pages.clear();
    this.pages.set(first, rows);
    this.#setTotal(total);
    this.draw(true);
  }

  /** Goes back to the top, for another list. */
  async restart() {
    this.root.scrollTop = 0;
    await this.refresh();
  }

  close() {
    this.sizes.disconnect();
  }

  /** @param {number} total */
  #setTotal(total) {
    this.total = total;
    this.list.style.height = `${total * this.rowHeight}px`;
    this.source.onTotal(total);
  }

  #firstPage() {
    return Math.floor(Math.floor(this.root.scrollTop / this.rowHeight) / PAGE);
  }

  /** @param {boolean} [isNew] Whether rows that are shown may have changed. */
  draw(isNew = false) {
    const first = Math.max(0, Math.floor(this.root.scrollTop / this.rowHeight) - SPARE);
    const last = Math.min(this.total, Math.ceil((this.root.scrollTop + this.root.clientHeight) / this.rowHeight) + SPARE);
    /** @type {Map<number, HTMLElement>} */
    const shown = new Map();
    for (const node of /** @type {HTMLElement[]} */ ([...this.list.children])) {
      const at = Number(node.dataset.at);
      const isStale = isNew || at < first || at >= last || (node.dataset.empty === "yes" && this.#row(at) !== undefined);
      if (!isStale || (isNew && at >= first && at < last && this.#same(node, at))) shown.set(at, node);
    }
    const nodes = [];
    for (let at = first; at < last; at += 1) nodes.push(shown.get(at) ?? this.#node(at));
    replaceNodes(this.list, nodes);
    this.#fetchMissing(first, last);
  }

  /**
   * @param {HTMLElement} node
   * @param {number} at
   */
  #same(node, at) {
    const row = this.#row(at);
    return row !== undefined && this.source.show(row).isEqualNode(node.firstElementChild);
  }

  /** @param {number} at */
  #row(at) {
    return this.pages.get(Math.floor(at / PAGE))?.[at % PAGE];
  }

  /** @param {number} at */
  #node(at) {
    const node = element("li", "window-row");
    const row = this.#row(at);
    node.dataset.at = String(at);
    node.dataset.empty = row === undefined ? "yes" : "no";
    node.style.top = `${at * this.rowHeight}px`;
    node.setAttribute("aria-posinset", String(at + 1));
    node.setAttribute("aria-setsize", String(this.total));
    if (row !== undefined) node.append(this.source.show(row));
    return node;
  }

  /**
   * @param {number} first
   * @param {number} last
   */
  #fetchMissing(first, last) {
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(first, last - 1) / PAGE); page += 1) {
      if (page * PAGE < this.total && !this.pages.has(page) && !this.asked.has(page)) this.#fetchPage(page);
    }
  }

  /** @param {number} page */
  async #fetchPage(page) {
    const version = this.version;
    this.asked.add(page);
    try {
      const { rows, total } = await this.source.read(page * PAGE, PAGE);
      if (version !== this.version) return;
      this.pages.set(page, rows);
      if (this.pages.size > MAX_PAGES) this.pages.delete(/** @type {number} */ (this.pages.keys().next().value));
      if (total !== this.total) this.#setTotal(total);
      this.draw();
    } catch {
      // The next scroll or change tries again.
    } finally {
      this.asked.delete(page);
    }
  }
}
