// What the step cache did in a run: its numbers, the steps it reused, and how far the steps were apart.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 60;
const MARK = 8;
const COMPUTED = "#5b8fb9";
const REUSED = "#8bc48a";
const LINE = "#d9a441";

/** An element for the cache's part of a report; null for a run without one. */
export function cacheView(cache) {
  if (!cache) return null;
  const box = document.createElement("div");
  box.className = "outboard-cache";
  box.style.cssText = "margin: 0.25rem 0; font-size: 0.8rem";
  box.append(...lines(cache).map(paragraph));
  if (cache.computed.length) box.append(plot(cache));
  return box;
}

function lines(cache) {
  const notes = cache.notes.map((note) => `Note: ${note}`);
  if (!cache.computed.length) return [`Step cache (${cache.preset}): off`, ...notes];
  const branches = Object.entries(cache.hit_rates).map(([name, rate]) => `${name} ${percent(rate)}`);
  return [
    `Step cache (${cache.preset}): ${percent(cache.hit_rate)} of rows reused${branches.length > 1 ? ` (${branches.join(", ")})` : ""}`,
    `${percent(cache.saving)} of the blocks spared, of ${percent(cache.saving_predicted)} that the settings allow`,
    `${(cache.peak_bytes / 2 ** 20).toFixed(2)} MiB remembered at most`,
    ...notes,
  ];
}

/** One mark for each step, its reused part in another colour; above them the distances and the threshold. */
function plot(cache) {
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + MARK}`, width: "100%", class: "outboard-cache-plot" });
  const step = WIDTH / cache.steps;
  cache.computed.forEach((computed, index) => svg.append(...marks(index * step, step, computed, cache.reused[index])));
  if (cache.residuals.length) svg.append(...curve(cache, step));
  return svg;
}

function marks(x, step, computed, reused) {
  const rows = computed + reused;
  if (!rows) return [];
  const state = computed ? (reused ? "mixed" : "computed") : "reused";
  const bar = { x, y: HEIGHT, width: Math.max(step - 1, 0.5), height: MARK, fill: COMPUTED, "data-state": state };
  const title = element("title");
  title.textContent = `${computed} of ${rows} rows computed, ${reused} reused`;
  const whole = element("rect", bar);
  whole.append(title);
  const height = (MARK * reused) / rows;
  return reused ? [whole, element("rect", { ...bar, height, fill: REUSED, "data-state": "part", "pointer-events": "none" })] : [whole];
}

function curve(cache, step) {
  const threshold = cache.values.residual_diff_threshold ?? 0;
  const largest = Math.max(threshold, ...cache.residuals.map((point) => point.distance), 1e-9);
  const y = (distance) => (HEIGHT - 4) * (1 - distance / largest) + 2;
  const points = cache.residuals.map((point) => `${(point.step + 0.5) * step},${y(point.distance)}`);
  return [
    element("polyline", { points: points.join(" "), fill: "none", stroke: LINE, class: "outboard-cache-curve" }),
    element("line", { x1: 0, x2: WIDTH, y1: y(threshold), y2: y(threshold), stroke: "currentColor", "stroke-dasharray": "3 3", opacity: 0.6 }),
  ];
}

function element(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function paragraph(text) {
  const made = document.createElement("div");
  made.textContent = text;
  return made;
}

function percent(share) {
  return `${(100 * share).toFixed(0)} %`;
}
