"""Every message of the protocol, by direction; SPEC.md has one section for each."""

from __future__ import annotations

from collections.abc import Mapping

from .base import Message, Record
from .client import CLIENT_MESSAGES
from .control import CONTROL_REPLIES, CONTROL_REQUESTS
from .engine import ENGINE_MESSAGES

#: Wire type name -> record, all directions.
MESSAGES: Mapping[str, type[Message]] = {
    message.type: message
    for message in (*CLIENT_MESSAGES, *ENGINE_MESSAGES, *CONTROL_REQUESTS, *CONTROL_REPLIES)
}

__all__ = ["MESSAGES", "Message", "Record"]
