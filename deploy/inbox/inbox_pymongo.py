"""Drops a message that arrives again, in the receiver's own transaction: PyMongo 4, a MongoDB replica set."""

from collections.abc import Callable
from datetime import datetime, timezone

from pymongo import MongoClient
from pymongo.client_session import ClientSession


def receive(client: MongoClient, kind: str, id: str, apply: Callable[[ClientSession], None]) -> bool:
    """Return whether it was the first. Acknowledge the message in both cases, and not after an exception. apply may run twice."""
    inbox = client.get_default_database().inbox

    def write(session):
        key = {"_id": {"kind": kind, "id": id}}  # in this order
        done = inbox.update_one(key, {"$setOnInsert": {"receivedAt": datetime.now(timezone.utc)}}, upsert=True, session=session)
        if done.upserted_id is not None:
            apply(session)
        return done.upserted_id is not None

    with client.start_session() as session:
        return session.with_transaction(write)  # runs again while a copy is being applied
