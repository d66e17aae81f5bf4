"""What the panel in the page asks for."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web
from server import PromptServer

from ..protocol.errors import OutboardError
from ..protocol.messages.control import Unload
from .prompt_handler import enabled, use_outboard
from .report import REPORTS
from .session import SESSIONS, Session

UNLOAD_TIMEOUT = 10.0


def install() -> None:
    """Add the routes and the prompt handler to ComfyUI's server; nothing without a server."""
    server = getattr(PromptServer, "instance", None)
    if server is None:
        logging.debug("Outboard: no server, so no panel")
        return
    server.routes.get("/outboard/status")(status)
    server.routes.post("/outboard/unload")(unload)
    server.add_on_prompt_handler(use_outboard)


async def status(request: web.Request) -> web.Response:
    """Every engine this ComfyUI has used, the latest reports, and the setting as the server sees it."""
    engines = await asyncio.gather(*(asyncio.to_thread(_describe, session) for session in SESSIONS.all()))
    return web.json_response({"engines": engines, "reports": REPORTS.latest(), "use_for_all": enabled()})


async def unload(request: web.Request) -> web.Response:
    """Have every engine in use drop its models; answers with the bytes they held."""
    freed = await asyncio.gather(*(asyncio.to_thread(_unload, session) for session in SESSIONS.all()))
    return web.json_response({"bytes_freed": sum(freed)})


def _describe(session: Session) -> dict[str, Any]:
    described: dict[str, Any] = {"address": session.choice.address, "device": session.choice.device}
    try:
        found = session.status()
    except OutboardError as error:
        return {**described, "state": "lost", "error": str(error)}
    if found is None:
        return {**described, "state": "not running"}
    return {**described, "state": "running", **found.model_dump()}


def _unload(session: Session) -> int:
    if not session.connected:
        return 0
    try:
        reply = session.control(Unload(), timeout=UNLOAD_TIMEOUT)
    except OutboardError as error:
        logging.warning("Outboard: models were not unloaded: %s", error)
        return 0
    return int(getattr(reply, "bytes_freed", 0))
