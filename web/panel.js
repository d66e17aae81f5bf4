// The sidebar tab: every engine this ComfyUI uses, what it holds, and what the latest runs did.

import { cacheView } from "./cache.js";

const REFRESH_MS = 2000;
const GIB = 2 ** 30;

/** Fill `element` and keep it fresh for as long as it is in the page. */
export function renderPanel(element, api, reportEvent) {
  const content = make("div", { class: "outboard-panel", style: "padding: 0.75rem; overflow-y: auto; height: 100%" });
  element.replaceChildren(content);
  const refresh = () => update(content, api);
  const timer = setInterval(() => (content.isConnected ? refresh() : stop()), REFRESH_MS);
  const stop = () => {
    clearInterval(timer);
    api.removeEventListener(reportEvent, refresh);
  };
  api.addEventListener(reportEvent, refresh);
  refresh();
}

async function update(content, api) {
  let state;
  try {
    const answer = await api.fetchApi("/outboard/status");
    state = await answer.json();
  } catch (error) {
    content.replaceChildren(make("p", {}, `ComfyUI does not answer: ${error.message}`));
    return;
  }
  const open = new Set([...content.querySelectorAll("details[open]")].map((run) => run.dataset.run));
  content.replaceChildren(
    make("h3", {}, "Engines"),
    ...(state.engines.length ? state.engines.map(engineCard) : [make("p", {}, "None yet. The first Outboard loader starts one.")]),
    unloadButton(content, api),
    make("h3", {}, "Latest runs"),
    ...(state.reports.length ? state.reports.map((report) => runCard(report, open)) : [make("p", {}, "None yet.")]),
  );
}

function engineCard(engine) {
  const rows = [["State", engine.running ? `running ${engine.running}` : engine.state]];
  if (engine.engine) {
    rows.push(["Engine", `${engine.engine} (${engine.life}, version ${engine.version})`]);
    rows.push(["Queued", String(engine.queued)]);
    rows.push(...engine.ranks.map((rank) => [`Rank ${rank.rank}`, `${rank.state}, ${rank.device}, ${size(rank.resident_bytes)}`]));
    rows.push(...engine.models.map((model) => [model.family, `${model.name}, ${model.dtype}, ${size(model.nbytes)}`]));
  }
  if (engine.error) rows.push(["Error", engine.error]);
  return card(`${engine.address} · ${engine.device}`, rows, { "data-state": engine.state });
}

// A run that was unfolded stays so while the panel is refreshed.
function runCard(report, open) {
  const facts = make("pre", { style: "white-space: pre-wrap; font-size: 0.75rem" }, JSON.stringify(report.facts, null, 2));
  const details = make("details", { class: "outboard-run", style: "margin-bottom: 0.5rem", "data-run": `${report.node} ${report.time}` });
  details.open = open.has(details.dataset.run);
  const cache = cacheView(report.facts.cache);
  details.append(make("summary", {}, `Node ${report.node}: ${report.line}`), ...(cache ? [cache] : []), facts);
  return details;
}

function card(title, rows, attributes) {
  const table = make("table", { style: "width: 100%; font-size: 0.85rem" });
  for (const [name, value] of rows) {
    const row = make("tr");
    row.append(make("td", { style: "opacity: 0.7; padding-right: 0.5rem; white-space: nowrap" }, name), make("td", {}, value));
    table.append(row);
  }
  const box = make("div", { class: "outboard-engine", style: "margin-bottom: 0.75rem", ...attributes });
  box.append(make("strong", {}, title), table);
  return box;
}

function unloadButton(content, api) {
  const button = make("button", { class: "outboard-unload", style: "margin-bottom: 1rem; cursor: pointer" }, "Unload models");
  button.addEventListener("click", async () => {
    button.disabled = true;
    await api.fetchApi("/outboard/unload", { method: "POST" });
    await update(content, api);
  });
  return button;
}

function size(bytes) {
  return `${(bytes / GIB).toFixed(2)} GiB`;
}

function make(tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}
