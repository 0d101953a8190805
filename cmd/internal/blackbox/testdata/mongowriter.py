"""A service that writes outbox documents, each transaction several of them.

mongowriter.py URL OPTIONS, where OPTIONS is an object in JSON:

  seconds, transactions  how long, or how many of all clients; without either, until
                         the standard input ends
  clients                how many threads
  rate                   transactions a second of all clients; 0: as fast as it goes
  groups                 how many message groups
  most                   documents in one transaction: 1 to so many
  form                   seed, messages, or text (messages with texts for times)
  late                   whether a transaction works between its begin and its writes
  broken                 whether the server ends under it: then a transaction that
                         fails is let go, and the next one is tried

The collection truth has a counter for each outbox and group. A transaction raises the
counters of its documents, and that conflicts with any other that raises them before it
has ended: so the numbers are the order of the commits. It prints how many transactions
committed and how many failed, in JSON.
"""

import datetime
import json
import random
import sys
import threading
import time

import pymongo
from pymongo.errors import PyMongoError

url, options = sys.argv[1], json.loads(sys.argv[2])
form, late, broken = options.get("form", "seed"), options.get("late"), options.get("broken")
seconds, transactions = options.get("seconds", 0), options.get("transactions", 0)
clients, rate, groups, most = options["clients"], options.get("rate", 0), options["groups"], options.get("most", 1)

# The kinds of documents by what they are counted under.
KINDS = {"events": ("outbox_events", "EVENT"), "jobs": ("outbox_dispatch_jobs", "DISPATCH_JOB")}
if form != "seed":
    KINDS = {"messages": ("outbox_messages", "EVENT")}

# A server may freeze: what is silent is given up soon.
hasty = {"serverSelectionTimeoutMS": 5000, "connectTimeoutMS": 1000, "heartbeatFrequencyMS": 1000, "socketTimeoutMS": 2000}
client = pymongo.MongoClient(url, **(hasty if broken else {}))
db = client.get_default_database()
lock, done, failed, ended = threading.Lock(), 0, [], threading.Event()


def document(kind, key, group, at, payload):
    """One outbox document as a service writes it."""
    if form == "text":
        text = at.strftime("%Y-%m-%dT%H:%M:%S.") + "%03dZ" % (at.microsecond // 1000)
        return {"id": key, "type": kind, "message_group": group, "payload": payload, "status": 0,
                "retry_count": 0, "created_at": text, "updated_at": text}
    known = {"_id": key, "type": kind, "messageGroup": group, "payload": payload, "retryCount": 0, "createdAt": at}
    if form == "messages":
        return {**known, "status": 0, "updatedAt": at}
    return {**known, "status": "PENDING", "processedAt": None, "errorMessage": None}


def write(session, these, at):
    """The body of a transaction; it runs again where another one was first."""
    if late:
        time.sleep(random.random() * 0.04)
    for outbox, group in these:
        collection, kind = KINDS[outbox]
        truth = db.truth.find_one_and_update({"_id": "%s:%d" % (outbox, group)}, {"$inc": {"n": 1}}, upsert=True,
                                             return_document=pymongo.ReturnDocument.AFTER, session=session)
        key = "%s%04d%08d" % (outbox[0].upper(), group, truth["n"])
        payload = json.dumps({"id": key, "type": "order.created", "n": truth["n"], "group": "group-%d" % group,
                              "at": int(time.time() * 1000)})
        db[collection].insert_one(document(kind, key, "group-%d" % group, at, payload), session=session)


def transaction():
    """One transaction, until it has committed."""
    these = [(random.choice(list(KINDS)), random.randint(1, groups)) for _ in range(random.randint(1, most))]
    at = datetime.datetime.now(datetime.timezone.utc)
    with client.start_session() as session:
        session.with_transaction(lambda s: write(s, these, at))


def work(number, until):
    """One client, whose transactions are spread evenly over its time."""
    global done
    began = time.monotonic()
    for n in range(sys.maxsize):
        if rate:
            time.sleep(max(0, began + (n * clients + number) / rate - time.monotonic()))
        if transactions and n >= transactions // clients or seconds and time.monotonic() >= until or ended.is_set():
            return
        try:
            transaction()
            with lock:
                done += 1
        except PyMongoError as error:
            with lock:
                failed.append(str(error))
            if not broken:
                return


until = time.monotonic() + seconds
threads = [threading.Thread(target=work, args=(i, until)) for i in range(clients)]
for thread in threads:
    thread.start()
if not seconds and not transactions:
    sys.stdin.read()
    ended.set()
for thread in threads:
    thread.join()
print(json.dumps({"committed": done, "failed": len(failed), "first": failed[0] if failed else ""}))
sys.exit(1 if failed and not broken else 0)
