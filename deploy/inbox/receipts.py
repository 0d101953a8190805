"""Appends a receipt of each message before the receiver answers 2xx: WSGI (Flask, Django and others)."""

import hashlib
import io
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

import chain


def receipts(
    app: Callable[..., Iterable[bytes]], path: str, gap: Callable[[str, str], None] | None = None
) -> Callable[..., Iterable[bytes]]:
    """Call gap with the id and the chain of a message before which another one is missing.

    A request without a webhook-id, for example a health check, is no message.
    """
    chains = chain.Chains()
    file = open(path, "ab", buffering=0)  # one write for each line, so that receivers may share the file

    def receive(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not environ.get("HTTP_WEBHOOK_ID"):
            return app(environ, start)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if status.startswith("2"):  # an error of the write becomes 500, and the relay sends the message again
                id, link = environ["HTTP_WEBHOOK_ID"], environ.get("HTTP_SLUICEBOX_CHAIN", "")
                add(file, id, environ.get("HTTP_SLUICEBOX_GROUP"), link, body)
                if gap and chains.accept(link) == "gap":
                    gap(id, link)
            return start(status, headers, exc_info)

        return app(environ, start_response)

    return receive


def add(file: Any, id: str, group: str | None, link: str, body: bytes) -> None:
    """Append a receipt. Call it once for each message of a batch."""
    at = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    line = {"id": id, "group": group or "", "chain": link, "at": at, "sum": hashlib.sha256(body).hexdigest()}
    file.write(json.dumps(line).encode() + b"\n")
