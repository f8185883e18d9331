"""Small trace documents for tests of the reader, built event by event."""

from __future__ import annotations

import io
import json
from typing import Any

from tracekit.io import kineto, names
from tracekit.io.assemble import Options, Window, assemble
from tracekit.io.events import Events


def event(cat: str, name: str, start: float, dur: float, **args: Any) -> dict[str, Any]:
    """A complete event; ``pid`` and ``tid`` are taken out of ``args``."""
    return {
        "ph": "X", "cat": cat, "name": name, "ts": start, "dur": dur,
        "pid": args.pop("pid", 1), "tid": args.pop("tid", 1),
        "args": {key.replace("_", " ") if key[0].isupper() else key: value
                 for key, value in args.items()},
    }  # fmt: skip


def kernel(name: str, start: float, dur: float, **args: Any) -> dict[str, Any]:
    """A kernel on device 0, stream 7."""
    return event("kernel", name, start, dur, **{"device": 0, "stream": 7, **args})


def parsed(*events: dict[str, Any], **header: Any) -> Events:
    """The events of a document with this header."""
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": list(events)})
    return kineto.parse(io.BytesIO(text.encode()), "test.json")


def window(*events: dict[str, Any], **header: Any) -> Window:
    """The same, assembled with the default patterns."""
    return assemble(parsed(*events, **header), Options(names.communication_pattern()))
