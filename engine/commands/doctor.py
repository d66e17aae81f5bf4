"""`outboard doctor`: look at everything an engine needs, and say what to do about what is wrong."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from ..cli import write
from ..config import Environment
from ..diagnosis import Finding, diagnose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(options: argparse.Namespace) -> int:
    problems = 0
    for finding in diagnose(Environment()):
        write(json.dumps(asdict(finding)) if options.json else _line(finding))
        problems += not finding.ok
    if not options.json:
        write(f"{problems or 'no'} problem{'' if problems == 1 else 's'}")
    return 1 if problems else 0


def _line(finding: Finding) -> str:
    remedy = f"\n         {finding.remedy}" if finding.remedy else ""
    return f"{'ok' if finding.ok else 'PROBLEM':<8} {finding.check}: {finding.found}{remedy}"
