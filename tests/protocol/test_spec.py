"""SPEC.md and the code say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_args

import pytest

import tree
from outboard.protocol.errors import error_classes
from outboard.protocol.limits import DEFAULT
from outboard.protocol.messages import (
    MESSAGES,
    Message,
    Record,
    adapters,
    cache,
    common,
    control,
    engine,
    guidance,
)
from outboard.protocol.values import ITEM_SIZES
from outboard.protocol.version import CAPABILITIES, PROTOCOL_VERSION

SPEC = (tree.ROOT / "protocol" / "SPEC.md").read_text(encoding="utf-8")
RECORDS: dict[str, type[Record]] = {
    **{
        record.__name__: record
        for module in (adapters, cache, common, guidance, engine, control)
        for record in vars(module).values()
        if isinstance(record, type) and issubclass(record, Record) and not issubclass(record, Message)
    },
}
#: Sections about several records.
OVERVIEWS = ["Changes to guidance"]
RECORDS.pop("Record")
RECORDS["Limits record"] = RECORDS.pop("Limits")


def section(title: str) -> str:
    match = re.search(rf"^###? {re.escape(title)}\n(.*?)(?=^##|\Z)", SPEC, re.MULTILINE | re.DOTALL)
    assert match, f"SPEC.md has no section {title!r}"
    return match[1]


def table(text: str) -> list[list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def documented_fields(title: str) -> dict[str, str]:
    return {row[0].strip("`"): row[1] for row in table(section(title))}


def test_version_is_the_codes() -> None:
    assert SPEC.startswith(f"# Outboard protocol {PROTOCOL_VERSION}\n")


def test_capabilities_are_the_codes() -> None:
    named = re.search(r"Version 2\.0 defines (.*?):", section("Sessions"))
    assert named
    assert tuple(re.findall(r"`(\w+)`", named[1])) == CAPABILITIES


def test_kinds_of_patches_are_the_codes() -> None:
    kinds = [kind for row in table(section("Adapters")) for kind in re.findall(r"`(\w+)`", row[0])]
    assert tuple(kinds) == get_args(adapters.Kind)


def test_every_section_below_messages_is_a_message_or_a_record() -> None:
    titles = re.findall(r"^### (.*)$", SPEC, re.MULTILINE)
    assert sorted(titles) == sorted([*MESSAGES, *RECORDS, *OVERVIEWS])


@pytest.mark.parametrize("title", [*MESSAGES, *RECORDS])
def test_every_field_has_a_row_that_says_whether_it_may_be_left_out(title: str) -> None:
    record = {**MESSAGES, **RECORDS}[title]
    rows = documented_fields(title)
    assert list(rows) == list(record.model_fields)
    for name, info in record.model_fields.items():
        assert ("=" in rows[name]) != info.is_required(), f"{title}.{name}"


@pytest.mark.parametrize("name", MESSAGES)
def test_terminal_messages_are_marked(name: str) -> None:
    text = section(name)
    assert text.lstrip().startswith("Terminal") == MESSAGES[name].terminal
    if MESSAGES[name] in engine.ENGINE_MESSAGES and not MESSAGES[name].terminal:
        assert text.lstrip().startswith("Event.")


def test_every_request_names_the_reply_that_ends_it() -> None:
    answers = dict.fromkeys(MESSAGES, "")
    for name in MESSAGES:
        match = re.search(r"[Aa]nswered by `(\w+)`", section(name))
        answers[name] = match[1] if match else ""
    requests = [name for name, record in MESSAGES.items() if record not in engine.ENGINE_MESSAGES]
    for name in requests:
        if not MESSAGES[name].terminal:
            assert MESSAGES[answers[name]].terminal, name


def test_error_codes_are_the_codes() -> None:
    rows = [row[0].lstrip("— ").strip("`") for row in table(section("Errors"))]
    assert rows == [cls.code for cls in error_classes()]


def test_limits_are_the_codes() -> None:
    rows = {row[0].strip("`"): int(row[1]) for row in table(section("Limits"))}
    assert rows == {item.name: getattr(DEFAULT, item.name) for item in fields(DEFAULT)}


def test_dtypes_are_the_codes() -> None:
    row = next(row for row in table(section("Tensors")) if row[0] == "`dtype`")
    assert re.findall(r"`(\w+)`", row[2]) == list(ITEM_SIZES)
