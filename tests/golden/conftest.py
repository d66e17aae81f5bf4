"""Golden tests: say at the end of the run what was, and what could not yet be, compared."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from golden.errors import ERRORS, ErrorTable
from golden.folder import SUMMARY

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


@pytest.fixture
def errors(pytestconfig: pytest.Config) -> ErrorTable:
    return pytestconfig.stash.setdefault(ERRORS, ErrorTable())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = [*config.stash.get(SUMMARY, [])]
    table = config.stash.get(ERRORS, ErrorTable())
    if table.rows:
        lines.append(table.line())
    if table.rows and os.environ.get("OUTBOARD_WRITE_DOCS"):
        PAGE.write_text(table.page(), encoding="utf-8")
    if lines:
        terminalreporter.section("golden vectors")
    for line in lines:
        terminalreporter.write_line(line)
