// Outboard Report and Outboard LoRA Loader show their texts on the node.

const WIDGET = "shown";

/** Give the node definition `nodeType` a read-only text that each execution fills. */
export function showsReport(nodeType) {
  const executed = nodeType.prototype.onExecuted;
  nodeType.prototype.onExecuted = function (output) {
    executed?.apply(this, arguments);
    const text = output?.text?.join("") ?? "";
    textOf(this).value = text;
    this.setDirtyCanvas?.(true, true);
  };
}

function textOf(node) {
  const found = node.widgets?.find((widget) => widget.name === WIDGET);
  if (found) return found.element;
  const element = document.createElement("textarea");
  element.readOnly = true;
  element.className = "comfy-multiline-input outboard-report";
  node.addDOMWidget(WIDGET, "outboard-report", element, { serialize: false, getMinHeight: () => 160 });
  return element;
}
