"""The structural rules that no linter holds: sizes, and where anything may be caught."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from statistics import median

import tree

MAX_FILE_LINES, MEDIAN_FILE_LINES = 300, 150
MAX_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 60, 8

#: Where anything may be caught, since somebody waits to hear of it: in the outermost loop of each process,
#: which answers it as an error, and around what one rank does alone, for the other ranks of its group.
ANSWERED = ["engine/rank/peers.py", "engine/rank/worker.py", "engine/supervisor/supervisor.py"]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(tree.parse(path)) if isinstance(node, Function)]


def lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_broad(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in ("Exception", "BaseException") for kind in caught)


def test_files_are_short() -> None:
    counts = {tree.name(path): len(path.read_text().splitlines()) for path in tree.sources()}
    assert {name: count for name, count in counts.items() if count > MAX_FILE_LINES} == {}
    assert median(counts.values()) <= MEDIAN_FILE_LINES


def test_functions_are_short() -> None:
    counts = {
        f"{tree.name(path)}:{node.name}": lines(node) for path in tree.sources() for node in functions(path)
    }
    assert {name: count for name, count in counts.items() if count > MAX_FUNCTION_LINES} == {}
    assert median(counts.values()) <= MEDIAN_FUNCTION_LINES


def test_anything_is_caught_only_where_somebody_waits_to_hear_of_it() -> None:
    broad = [
        tree.name(path)
        for path in tree.sources()
        for node in ast.walk(tree.parse(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node)
    ]
    assert broad == ANSWERED


def test_every_file_says_what_it_is_about() -> None:
    files = [path for path in tree.sources() if path.stat().st_size]
    silent = [tree.name(path) for path in files if not ast.get_docstring(tree.parse(path))]
    assert silent == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine = re.compile(r"(?<![\w.])/(root|work|home|tmp)/")
    files = [*tree.sources(), *tree.ROOT.glob("*.md"), *(tree.ROOT / "scripts").iterdir()]
    assert [tree.name(path) for path in files if machine.search(path.read_text(encoding="utf-8"))] == []
