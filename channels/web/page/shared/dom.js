// Small functions for the elements of a page.

/**
 * Returns the element with an id, which must be in the page.
 * @template {Element} [T=HTMLElement]
 * @param {string} id
 * @param {new () => T} [type] The class of the element, if more than that of all HTML elements is needed.
 * @returns {T}
 */
export function $(id, type) {
  const node = document.getElementById(id);
  if (!(node instanceof (type ?? HTMLElement))) throw new Error(`The page has no fitting element #${id}.`);
  return /** @type {T} */ (/** @type {unknown} */ (node));
}

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} [className]
 * @param {string} [text]
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

/**
 * @param {string} className
 * @param {string} text Shown, or read out if there is an icon.
 * @param {string} [iconName]
 */
export function button(className, text, iconName) {
  const node = element("button", className, iconName ? "" : text);
  node.type = "button";
  if (!iconName) return node;
  node.append(icon(iconName));
  label(node, text);
  return node;
}

/**
 * Names an element for people who cannot see it, and for those who point at it.
 * @param {HTMLElement} node
 * @param {string} text
 */
export function label(node, text) {
  if (node.getAttribute("aria-label") !== text) node.setAttribute("aria-label", text);
  if (node.title !== text) node.title = text;
}

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} name A symbol of `icons.svg`. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("aria-hidden", "true");
  svg.append(document.createElementNS(SVG, "use"));
  svg.firstElementChild?.setAttribute("href", `/shared/icons.svg#${name}`);
  return svg;
}

/**
 * @param {Element} node
 * @param {string} text
 */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * Makes `nodes` the children of `parent`, and touches only nodes that are added, removed or moved.
 * @param {Element} parent
 * @param {Element[]} nodes
 */
export function replaceNodes(parent, nodes) {
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
}

/**
 * Returns the element around the target of an event that matches a selector.
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export function closest(event, selector) {
  return event.target instanceof Element ? event.target.closest(selector) : null;
}
