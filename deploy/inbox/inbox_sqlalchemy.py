"""Drops a message that arrives again, in the receiver's own transaction: SQLAlchemy 2 on PostgreSQL, MySQL and MariaDB."""

from collections.abc import Callable

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

INSERT = text("INSERT INTO inbox (kind, id) VALUES (:kind, :id)")


def receive(engine: Engine, kind: str, id: str, apply: Callable[[Connection], None]) -> bool:
    """Return whether it was the first. Acknowledge the message in both cases, and not after an exception."""
    with engine.begin() as conn:  # commits, or rolls back at an exception
        try:
            with conn.begin_nested():  # PostgreSQL needs a savepoint to go on after an error
                conn.execute(INSERT, {"kind": kind, "id": id})  # waits for a copy that is being applied
        except IntegrityError as error:
            if error.orig.args[0] == 1062 or getattr(error.orig, "sqlstate", None) == "23505":  # a duplicate
                return False
            raise
        apply(conn)
    return True
