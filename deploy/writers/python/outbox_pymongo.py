"""A change of an order and its outbox documents, in one transaction: PyMongo 4, a MongoDB replica set."""

import json
import uuid
from collections.abc import Iterable
from datetime import datetime, timezone

from pymongo import MongoClient


def save(client: MongoClient, order: str, status: str, events: Iterable[tuple[str, dict]], traceparent: str | None = None) -> None:
    db, events = client.get_default_database(), list(events)  # a list, because with_transaction may run twice

    def write(session):
        db.orders.update_one({"_id": order}, {"$set": {"status": status}}, session=session)  # conflicts with others
        for type, payload in events:
            row = {"_id": str(uuid.uuid4()), "aggregatetype": "order", "aggregateid": order, "type": type, "payload": json.dumps(payload)}
            more = {"traceparent": traceparent} if traceparent else {}
            db.outbox.insert_one(row | more | {"created_at": datetime.now(timezone.utc)}, session=session)

    with client.start_session() as session:
        session.with_transaction(write)  # commits, or aborts at an exception; retries conflicts
