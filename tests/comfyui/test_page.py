"""The page in a headless browser: the panel, the setting, the line on a node, and the example workflows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from comfyui.conftest import REPOSITORY
from comfyui.graphs import DIGITS, Graph, sampled, saved
from comfyui.pairs import succeeded
from comfyui.server import ComfyServer

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)

pytestmark = [
    pytest.mark.comfyui,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not CHROMIUM, reason="there is no chromium on this machine"),
]

WORKFLOWS = sorted(path.stem for path in (REPOSITORY / "workflows").glob("*.json"))
READY = "window.app && window.app.graph && window.app.extensionManager"
TO_API = "async workflow => { await app.loadGraphData(workflow); return (await app.graphToPrompt()).output; }"


@pytest.fixture(scope="module")
def page(comfy: ComfyServer) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1500, "height": 950})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"http://127.0.0.1:{comfy.port}/")
        page.wait_for_function(READY, timeout=60_000)
        page.wait_for_timeout(2000)
        page.keyboard.press("Escape")
        yield page
        assert [error for error in errors if "outboard" in error.lower()] == []
        browser.close()


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        (REPOSITORY / "workflows" / f"{name}.json").read_text(encoding="utf-8")
    )
    return loaded


def test_the_setting_is_there_and_off(page: Any, comfy: ComfyServer) -> None:
    assert page.evaluate("app.extensionManager.setting.get('Outboard.UseForAll')") is False
    assert comfy.get("/outboard/status")["use_for_all"] is False


@pytest.mark.parametrize("name", WORKFLOWS)
def test_an_example_workflow_loads_with_every_link_and_value(
    page: Any, comfy: ComfyServer, name: str
) -> None:
    stored = workflow(name)
    prompt = page.evaluate(TO_API, stored)
    assert sorted(node["class_type"] for node in prompt.values()) == sorted(
        node["type"] for node in stored["nodes"]
    )
    for node in prompt.values():
        info = comfy.get(f"/object_info/{node['class_type']}")[node["class_type"]]
        assert info["input"].get("required", {}).keys() <= node["inputs"].keys()
    links = [
        value for node in prompt.values() for value in node["inputs"].values() if isinstance(value, list)
    ]
    assert len(links) == len(stored["links"])


def test_there_are_three_example_workflows() -> None:
    assert WORKFLOWS == ["digits-demo", "ernie-image-turbo", "flux1-dev"]


def test_the_demo_runs_from_the_page_and_shows_in_panel_and_graph(page: Any, comfy: ComfyServer) -> None:
    page.evaluate(TO_API, workflow("digits-demo"))
    prompt = page.evaluate("async () => (await app.queuePrompt(0), (await app.api.getQueue()))")
    assert prompt
    page.wait_for_function(BADGE, timeout=60_000)
    line = page.evaluate(BADGE)
    assert line.startswith("whole loop · 20 steps · 20 forwards · ")
    assert line.endswith(" · euler · fp32 · cpu")
    page.wait_for_function("document.querySelector('.outboard-report')?.value.includes('whole_loop')")
    page.evaluate("app.extensionManager.sidebarTab.toggleSidebarTab('outboard')")
    page.wait_for_selector(".outboard-engine[data-state=running]", timeout=10_000)
    assert "outboard-digits.safetensors" in page.inner_text(".outboard-panel")
    assert line in page.inner_text(".outboard-panel")
    page.screenshot(path=str(comfy.base / "page.png"))
    page.click(".outboard-unload")
    page.wait_for_function("!document.querySelector('.outboard-engine').innerText.includes('safetensors')")


BADGE = """() => {
  const node = app.graph.nodes.find(node => node.type === 'OutboardKSampler');
  const texts = (node?.badges ?? []).map(badge => (typeof badge === 'function' ? badge() : badge).text);
  return texts.find(text => text?.includes('loop')) ?? null;
}"""


def test_the_panel_draws_what_the_step_cache_did(page: Any, comfy: ComfyServer) -> None:
    graph = Graph()
    values = {"Fn_compute_blocks": 1, "max_warmup_steps": 3, "residual_diff_threshold": 0.3}
    loaded = DIGITS.model(graph, ours=True)
    model = graph.add("OutboardCacheSettings", model=loaded, preset="custom", **values)
    latent = sampled(graph, model, *DIGITS.texts(graph), DIGITS.latent(graph), steps=12)
    saved(graph, latent, "panel")
    succeeded(comfy.run(graph.nodes))
    newest = comfy.get("/outboard/status")["reports"][0]
    run = page.locator(".outboard-run").filter(has_text=newest["line"]).first
    run.locator("summary").click(timeout=10_000)
    page.wait_for_timeout(2500)
    assert run.locator(".outboard-cache-plot").is_visible(), "a refresh must not fold it"
    page.screenshot(path=str(comfy.base / "cache.png"))
    cache = newest["facts"]["cache"]
    marks = run.locator("rect:not([data-state=part])")
    states = marks.evaluate_all("marks => marks.map(mark => mark.dataset.state)")
    assert states == ["computed" if computed else "reused" for computed in cache["computed"]]
    assert "reused" in states
    curve = run.locator(".outboard-cache-curve").get_attribute("points")
    assert len(curve.split()) == len(cache["residuals"]) == 9
    assert "of the blocks spared" in run.locator(".outboard-cache").inner_text()


def test_the_example_workflows_are_offered_as_templates(comfy: ComfyServer) -> None:
    templates = comfy.get("/api/workflow_templates")
    assert (
        sorted(next(names for pack, names in templates.items() if "utboard" in pack and names)) == WORKFLOWS
    )


def test_every_node_has_a_help_page(comfy: ComfyServer) -> None:
    pack = next(path for path in comfy.get("/extensions") if path.endswith("/outboard.js")).rsplit("/", 1)[0]
    for path in (REPOSITORY / "web" / "docs").glob("*.md"):
        assert comfy.get(f"/object_info/{path.stem}") != {}, path
    assert Path(REPOSITORY / "web" / "outboard.js").is_file()
    assert pack.startswith("/extensions/")
