"""The `outboard` command: one module of engine/commands/ per subcommand, imported only when it is called."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence

from ..protocol.errors import OutboardError

COMMANDS: Mapping[str, str] = {
    "serve": "run a shared engine",
    "status": "show what the running engine does",
    "demo": "draw with the shipped model, without ComfyUI",
    "bench": "measure speed and memory",
    "tune": "find step cache settings for a model",
    "doctor": "check this installation",
    "keys": "make the keys of an encrypted connection",
    "setup": "make the engine its own Python environment",
}


def write(text: str) -> None:
    """Put one line on standard output; the only way a command speaks."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed with a message, 2 wrong usage."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser(given[:1])
    options = parser.parse_args(given)
    command = importlib.import_module(f"{__package__}.commands.{options.command}")
    try:
        return int(command.run(options))
    except OutboardError as error:
        sys.stderr.write(f"outboard {options.command}: {error}\n")
        return 1


def _parser(chosen: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="outboard", description="A fast diffusion engine beside ComfyUI.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(name, help=summary, description=summary)
        if name in chosen:
            importlib.import_module(f"{__package__}.commands.{name}").add_arguments(subparser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
