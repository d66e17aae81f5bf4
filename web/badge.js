// The report's short line, as a badge on the node that made it.

const LINE = Symbol("outboard line");

/** Find a node by its execution id: "12", or "57:28" for node 28 inside the subgraph node 57. */
export function findNode(app, id) {
  let graph = app.rootGraph ?? app.graph;
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

/** Show `line` on the node with that id, in place of an earlier one. */
export function showLine(app, id, line) {
  const node = findNode(app, id);
  if (!node) return;
  if (node[LINE] === undefined && window.LGraphBadge) {
    node.badges?.push(() => new window.LGraphBadge({ text: node[LINE], fgColor: "#fff", bgColor: "#2b4a66" }));
  }
  node[LINE] = line;
  node.graph?.setDirtyCanvas(true, true);
}
