"""A change of an order and its outbox rows, in one transaction: psycopg 3, PostgreSQL."""

import json
import uuid
from collections.abc import Iterable

import psycopg

INSERT = """INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent)
            VALUES (%s, 'order', %s, %s, %s, %s)"""


def save(conn: psycopg.Connection, order: str, status: str, events: Iterable[tuple[str, dict]], traceparent: str | None = None) -> None:
    with conn.transaction():  # commits, or rolls back at an exception; conn must not be in a transaction yet
        conn.execute("UPDATE orders SET status = %s WHERE id = %s", (status, order))  # locks the order
        for type, payload in events:
            conn.execute(INSERT, (uuid.uuid4(), order, type, json.dumps(payload), traceparent))
