"""Drops a message that arrives again, in the receiver's own transaction: psycopg 3, PostgreSQL."""

from collections.abc import Callable

import psycopg

INSERT = "INSERT INTO inbox (kind, id) VALUES (%s, %s) ON CONFLICT DO NOTHING"


def receive(conn: psycopg.Connection, kind: str, id: str, apply: Callable[[psycopg.Connection], None]) -> bool:
    """Return whether it was the first. Acknowledge the message in both cases, and not after an exception."""
    with conn.transaction():  # commits, or rolls back at an exception
        first = conn.execute(INSERT, (kind, id)).rowcount == 1  # waits for a copy that is being applied
        if first:
            apply(conn)
    return first
