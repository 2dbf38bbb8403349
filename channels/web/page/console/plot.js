// Stacked bars over days, as SVG with axes. The colours come from the style sheet.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 720;
const HEIGHT = 260;
const LEFT = 56;
const BOTTOM = 28;
const TOP = 12;
const TICKS = 4;

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {number[]} values One for each day.
 */

/**
 * @param {string} label What the plot shows, for people who cannot see it.
 * @param {string[]} days
 * @param {Series[]} series
 * @param {(value: number) => string} format
 */
export function barPlot(label, days, series, format) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "plot" });
  svg.setAttribute("aria-label", label);
  const sums = days.map((_, at) => series.reduce((sum, each) => sum + each.values[at], 0));
  const top = niceCeiling(Math.max(...sums, 0));
  const height = HEIGHT - BOTTOM - TOP;
  /** @param {number} value */
  const y = (value) => TOP + height - (value / top) * height;
  for (let tick = 0; tick <= TICKS; tick += 1) {
    const value = (top / TICKS) * tick;
    svg.append(shape("line", { x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value), class: "grid" }));
    svg.append(text(format(value), LEFT - 8, y(value) + 4, "end"));
  }
  const step = (WIDTH - LEFT) / days.length;
  days.forEach((day, at) => {
    let sum = 0;
    series.forEach((each, number) => {
      if (!each.values[at]) return;
      const bar = shape("rect", {
        x: LEFT + at * step + step * 0.15,
        width: step * 0.7,
        y: y(sum + each.values[at]),
        height: Math.max(0.5, y(sum) - y(sum + each.values[at])),
        class: `bar series-${number}`,
      });
      const tip = shape("title", {});
      tip.textContent = `${day} · ${each.name}: ${format(each.values[at])}`;
      bar.append(tip);
      svg.append(bar);
      sum += each.values[at];
    });
    if (at % Math.ceil(days.length / 10) === 0) svg.append(text(day.slice(5), LEFT + at * step + step / 2, HEIGHT - 8, "middle"));
  });
  return svg;
}

/**
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 */
function shape(name, attributes) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  return node;
}

/**
 * @param {string} content
 * @param {number} x
 * @param {number} y
 * @param {string} anchor
 */
function text(content, x, y, anchor) {
  const node = shape("text", { x, y, "text-anchor": anchor, class: "axis" });
  node.textContent = content;
  return node;
}

/**
 * Returns a round number for the end of the axis, whose quarters are round as well.
 * @param {number} value
 */
export function niceCeiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return /** @type {number} */ ([1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10].find((factor) => factor * power >= value)) * power;
}
