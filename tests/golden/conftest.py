"""Golden tests: say at the end of the run what was, and what could not yet be, compared."""

from __future__ import annotations

import pytest

from golden.folder import SUMMARY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(SUMMARY, [])
    if lines:
        terminalreporter.section("golden vectors")
    for line in lines:
        terminalreporter.write_line(line)
