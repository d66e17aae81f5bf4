"""`outboard keys`: the CURVE keys by which an engine and its clients on other machines know each other."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...protocol.curve import allow, create_keys
from ..cli import write
from ..paths import keys_dir

SERVER = "server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dir", type=Path, default=keys_dir(), help="where the keys lie (default: %(default)s)")
    add("--client", default="client", metavar="NAME", help="name of the client's key (default: client)")
    add(
        "--allow",
        type=Path,
        metavar="FILE",
        help="let in the client whose public .key file this is; makes no keys",
    )


def run(options: argparse.Namespace) -> int:
    """Make what is missing: the engine's key pair, and one for a client who is then let in."""
    folder: Path = options.dir
    if options.allow:
        write(f"Let in: {allow(options.allow, folder / 'clients')}")
        return 0
    if not (folder / f"{SERVER}.key_secret").exists():
        create_keys(folder, SERVER)
        write(f"Engine:  {folder / SERVER}.key_secret stays here, {SERVER}.key goes to every client")
    create_keys(folder, options.client)
    allow(folder / f"{options.client}.key", folder / "clients")
    write(f"Client:  {folder / options.client}.key_secret goes to that client alone; it is let in")
    write(f"Serve:   outboard serve --bind tcp://0.0.0.0:7790 --keys {folder}")
    return 0
