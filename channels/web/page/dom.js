// Small functions for the elements of the page.

export const $ = (id) => document.getElementById(id);

export function element(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

export function icon(name) {
  const svg = $("attach").firstElementChild.cloneNode(true);
  svg.firstElementChild.setAttribute("href", `#icon-${name}`);
  return svg;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Makes `nodes` the children of `parent`, and touches only nodes that are added, removed or moved.
export function replaceNodes(parent, nodes) {
  const wanted = new Set(nodes);
  for (const node of [...parent.children]) if (!wanted.has(node)) node.remove();
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
}

export function formatSize(size) {
  if (size < 1000) return `${size} bytes`;
  return size < 1e6 ? `${Math.round(size / 1e3)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

export function relativeTime(at) {
  const seconds = (Date.now() - Date.parse(at)) / 1000;
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
  if (seconds < 60) return "just now";
  if (seconds < 3600) return words.format(-Math.floor(seconds / 60), "minute");
  if (seconds < 86400) return words.format(-Math.floor(seconds / 3600), "hour");
  return words.format(-Math.floor(seconds / 86400), "day");
}

let toastTimer = 0;

export function toast(text) {
  clearTimeout(toastTimer);
  $("toast").textContent = text;
  $("toast").hidden = false;
  toastTimer = setTimeout(() => ($("toast").hidden = true), 4000);
}
