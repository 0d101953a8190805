"""A change of an order and its outbox rows, in one transaction: SQLAlchemy 2 on PostgreSQL, MySQL and MariaDB."""

import json
import uuid
from collections.abc import Iterable

from sqlalchemy import Engine, text

UPDATE = text("UPDATE orders SET status = :status WHERE id = :order")
INSERT = text("""INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent)
                 VALUES (:id, 'order', :order, :type, :payload, :traceparent)""")


def save(engine: Engine, order: str, status: str, events: Iterable[tuple[str, dict]], traceparent: str | None = None) -> None:
    with engine.begin() as conn:  # commits, or rolls back at an exception; a Session's begin() does too
        conn.execute(UPDATE, {"status": status, "order": order})  # locks the order
        for type, payload in events:
            row = {"id": str(uuid.uuid4()), "order": order, "type": type, "payload": json.dumps(payload)}
            conn.execute(INSERT, row | {"traceparent": traceparent})
