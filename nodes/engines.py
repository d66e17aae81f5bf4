"""From an engine choice to an open connection: start or adopt an engine here, or dial one elsewhere."""

from __future__ import annotations

import re

from ..engine import launch, paths
from ..engine.parallel.layout import Layout
from ..protocol.address import Address, is_loopback
from ..protocol.client import Client
from ..protocol.curve import load_keys, load_public
from ..protocol.errors import InvalidRequestError
from . import interrupt, model_file
from .choice import AUTO, EngineChoice

NAME = "ComfyUI"
TCP = re.compile(r"tcp://(?P<host>.+):(?P<port>\d{1,5})")
#: Seconds a new engine may take until its ranks have imported torch and found their device.
START_TIMEOUT = 120.0
DIAL_TIMEOUT = 10.0


class Owned:
    """Holds the engines started here: each ends when its handle is let go, or with this process."""

    def __init__(self) -> None:
        self._engines: dict[str, launch.Engine] = {}

    def keep(self, engine: launch.Engine) -> None:
        if engine.process is not None:
            self._engines[engine.id] = engine
        for name in [name for name, held in self._engines.items() if not held.alive()]:
            del self._engines[name]

    def alive(self, engine: launch.Engine) -> bool:
        return self._engines.get(engine.id, engine).alive()


OWNED = Owned()


class Alive:
    """Whether an engine's process lives; while it is `starting`, the user's interrupt ends the wait."""

    def __init__(self, engine: launch.Engine) -> None:
        self._engine = engine
        self.starting = True

    def __call__(self) -> bool:
        if self.starting:
            interrupt.check()
        return OWNED.alive(self._engine)


def connect(choice: EngineChoice) -> Client:
    """A new session with the engine of `choice`.

    Raises EngineStartError or EngineLostError, AuthError, VersionError, CancelledError when the user
    interrupts the wait, and InvalidRequestError for an address that is none.
    """
    if choice.address != AUTO:
        return _remote(choice.address)
    layout = Layout(**dict(choice.degrees)) if choice.degrees else None
    if layout is not None and choice.ranks:
        layout.check_world(choice.ranks)
    spec = launch.LaunchSpec(
        roots=model_file.roots(), device=choice.device, ranks=choice.ranks, layout=layout
    )
    engine = launch.adopt_or_start(spec)
    OWNED.keep(engine)
    alive = Alive(engine)
    client = Client.connect(engine.address, client=NAME, timeout=START_TIMEOUT, alive=alive)
    alive.starting = False
    return client


def _remote(endpoint: str) -> Client:
    match = TCP.fullmatch(endpoint)
    if match is None:
        raise InvalidRequestError(
            f"{endpoint!r} is no engine's address.",
            hint="Use auto, or tcp://host:port as `outboard serve` said.",
        )
    control = f"tcp://{match['host']}:{int(match['port']) + 1}"
    folder = paths.keys_dir()
    if is_loopback(endpoint) and not (folder / "server.key").is_file():
        return Client.connect(Address(endpoint, control), client=NAME, timeout=DIAL_TIMEOUT)
    address = Address(endpoint, control, server_key=load_public(folder / "server.key"))
    return Client.connect(
        address, client=NAME, timeout=DIAL_TIMEOUT, keys=load_keys(folder / "client.key_secret")
    )
