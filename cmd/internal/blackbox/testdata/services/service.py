"""A service for the tests: it writes with the writers of deploy/writers, and receives with deploy/inbox.

POST /write and POST /receive take a form. The answer is 200, or 409 with the error if the transaction was
rolled back. It prints its port, and ends with its standard input.
"""

import functools
import json
import os
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
import pymongo
import sqlalchemy

import inbox_psycopg
import inbox_pymongo
import inbox_sqlalchemy
import outbox_psycopg
import outbox_pymongo
import outbox_sqlalchemy
import receipts

making = threading.Lock()  # requests at once share what is made: functools.cache may make two


def shared(make):
    cached = functools.cache(make)

    def get(url):
        with making:
            return cached(url)

    return get


engine = shared(sqlalchemy.create_engine)
client = shared(pymongo.MongoClient)


def events(form):
    """The events, and then an error if the form asks for one."""
    for type, payload in zip(form["type"], form["payload"]):
        yield type, json.loads(payload)
    if "fail" in form:
        raise RuntimeError("the service fails after its rows")


def write(form):
    writer, url = form["writer"][0], form["url"][0]
    rest = form["order"][0], form["status"][0], events(form), form.get("traceparent", [None])[0]
    if writer == "psycopg":
        with psycopg.connect(url) as conn:
            outbox_psycopg.save(conn, *rest)
    elif writer == "sqlalchemy":
        outbox_sqlalchemy.save(engine(url), *rest)
    else:
        outbox_pymongo.save(client(url), *rest)


EFFECT = "INSERT INTO effects (kind, id) VALUES "


def receive(form):
    writer, url, kind, id = (form[key][0] for key in ("writer", "url", "kind", "id"))

    def effect(on):
        if writer == "psycopg":
            on.execute(EFFECT + "(%s, %s)", (kind, id))
        elif writer == "sqlalchemy":
            on.execute(sqlalchemy.text(EFFECT + "(:kind, :id)"), {"kind": kind, "id": id})
        else:
            client(url).get_default_database().effects.insert_one({"kind": kind, "id": id}, session=on)
        if "fail" in form:
            raise RuntimeError("the service fails after its rows")

    if writer == "psycopg":
        with psycopg.connect(url) as conn:
            return inbox_psycopg.receive(conn, kind, id, effect)
    if writer == "sqlalchemy":
        return inbox_sqlalchemy.receive(engine(url), kind, id, effect)
    return inbox_pymongo.receive(client(url), kind, id, effect)


def refuse_or_take(environ, start_response):
    start_response("409 Conflict" if environ["wsgi.input"].read() == b"refuse" else "204 No Content", [])
    return []


def note_gap(id, link):
    with open(os.environ["RECEIPTS"] + ".gaps", "a") as file:
        file.write(id + " " + link + "\n")


receipted = receipts.receipts(refuse_or_take, os.environ["RECEIPTS"], note_gap)


class Handler(BaseHTTPRequestHandler):
    def receipt(self):
        environ = {"HTTP_" + name.upper().replace("-", "_"): value for name, value in self.headers.items()}
        environ |= {"wsgi.input": self.rfile, "CONTENT_LENGTH": self.headers["Content-Length"]}
        receipted(environ, lambda status, headers, exc_info=None: self.send_response(int(status[:3])))
        self.end_headers()

    def do_POST(self):
        if self.path == "/receipt":
            return self.receipt()
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        try:
            status, text = 200, str(write(form) if self.path == "/write" else receive(form))
        except Exception as error:
            status, text = 409, repr(error)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
os._exit(0)  # at once, whatever the threads do
