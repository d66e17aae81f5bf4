// ComfyUI-Outboard in the page: a setting, a panel, and what the engine did, on the nodes.

import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { showLine } from "./badge.js";
import { renderPanel } from "./panel.js";
import { showsReport } from "./report.js";

/** Nodes that show the text they return. */
const SHOWN = new Set(["OutboardReport", "OutboardLoraLoader"]);
const REPORT_EVENT = "outboard.report";

app.registerExtension({
  name: "Outboard",
  settings: [
    {
      id: "Outboard.UseForAll",
      name: "Use Outboard for every diffusion model",
      tooltip: "Runs Load Diffusion Model nodes in the Outboard engine where it knows the model's family.",
      category: ["Outboard", "Models", "Use for all"],
      type: "boolean",
      defaultValue: false,
    },
  ],
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (SHOWN.has(nodeData.name)) showsReport(nodeType);
  },
  async setup() {
    api.addEventListener(REPORT_EVENT, ({ detail }) => showLine(app, detail.node, detail.line));
    app.extensionManager.registerSidebarTab({
      id: "outboard",
      icon: "pi pi-server",
      title: "Outboard",
      tooltip: "Outboard engines",
      type: "custom",
      render: (element) => renderPanel(element, api, REPORT_EVENT),
    });
  },
});
