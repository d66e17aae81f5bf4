"""`outboard setup`: give the engine a Python environment of its own, so that ComfyUI's stays as it is."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...protocol.errors import InvalidRequestError
from ..cli import write
from ..paths import engine_python
from ..provision import Plan, completed, describe, provision


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--venv", type=Path, help="folder of the environment (default: the engine's own place)"
    )
    parser.add_argument("--python", type=Path, help="interpreter it is made from (default: this one)")
    parser.add_argument("--torch", default="", metavar="SPEC", help="which torch, such as torch==2.9.1")
    parser.add_argument(
        "--use-torch",
        type=Path,
        metavar="PYTHON",
        help="borrow torch from this interpreter instead of installing one",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the commands and do nothing")


def run(options: argparse.Namespace) -> int:
    plan = make_plan(options)
    done = completed(plan)
    if done is not None:
        write(f"{plan.venv} is complete already")
    elif options.dry_run:
        write("\n".join(describe(plan)))
        return 0
    else:
        done = provision(plan, write)
    write(", ".join(f"{name} {version}" for name, version in done.versions.items() if version))
    if plan.interpreter != engine_python():
        write(f"Set OUTBOARD_PYTHON={plan.interpreter} where ComfyUI and `outboard` run.")
    return 0


def make_plan(options: argparse.Namespace) -> Plan:
    if options.use_torch and (options.torch or options.python):
        raise InvalidRequestError(
            "--use-torch names the interpreter and the torch; --python and --torch contradict it.",
            hint="Give it alone.",
        )
    venv = options.venv.absolute() if options.venv else engine_python().parents[1]
    python = options.use_torch or options.python
    return Plan(venv, python and python.absolute(), options.torch, borrows=options.use_torch is not None)
