"""Appends a receipt of each message before the receiver answers 2xx: WSGI (Flask, Django and others)."""

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any


def receipts(app: Callable[..., Iterable[bytes]], path: str) -> Callable[..., Iterable[bytes]]:
    file = open(path, "ab", buffering=0)  # one write for each line, so that receivers may share the file

    def receive(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if status.startswith("2"):  # an error of the write becomes 500, and the relay sends the message again
                add(file, environ["HTTP_WEBHOOK_ID"], environ.get("HTTP_SLUICEBOX_GROUP"), body)
            return start(status, headers, exc_info)

        return app(environ, start_response)

    return receive


def add(file: Any, id: str, group: str | None, body: bytes) -> None:
    """Append a receipt. Call it once for each message of a batch."""
    at = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    line = {"id": id, "group": group or "", "at": at, "sum": hashlib.sha256(body).hexdigest()}
    file.write(json.dumps(line).encode() + b"\n")
