// A service for the tests: it writes with the writers of deploy/writers, and receives with deploy/inbox.
//
// POST /write and POST /receive take a form. The answer is 200, or 409 with the error if the transaction
// was rolled back. It prints its port, and ends with its standard input.
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { MongoClient } from "mongodb";
import mysql from "mysql2/promise";
import pg from "pg";
import * as inboxMongodb from "./inbox-mongodb.js";
import * as inboxMysql2 from "./inbox-mysql2.js";
import * as inboxPg from "./inbox-pg.js";
import * as outboxMongodb from "./outbox-mongodb.js";
import * as outboxMysql2 from "./outbox-mysql2.js";
import * as outboxPg from "./outbox-pg.js";
import { receipts } from "./receipts.js";

const kept = new Map<string, unknown>();

// once makes a pool or client for each address.
function once<T>(url: string, make: (url: string) => T): T {
  if (!kept.has(url)) kept.set(url, make(url));
  return kept.get(url) as T;
}
// Without a handler the process ends when the server closes an idle connection.
const pgPool = (url: string) => once(url, (connectionString) => new pg.Pool({ connectionString }).on("error", console.error));
const mysqlPool = (url: string) => once(url, (uri) => mysql.createPool({ uri }));
const mongoClient = (url: string) => once(url, (u) => new MongoClient(u));

// events are those of the form, and then an error if it asks for one.
function* events(form: URLSearchParams) {
  const payloads = form.getAll("payload");
  for (const [i, type] of form.getAll("type").entries()) yield { type, payload: JSON.parse(payloads[i]!) as unknown };
  if (form.has("fail")) throw new Error("the service fails after its rows");
}

// receive has a row as its effect, and then an error if the form asks for one.
async function receive(form: URLSearchParams): Promise<boolean> {
  const [writer, url, kind, id] = ["writer", "url", "kind", "id"].map((key) => form.get(key)!) as [string, string, string, string];
  const end = () => { if (form.has("fail")) throw new Error("the service fails after its rows"); };
  const effect = "INSERT INTO effects (kind, id) VALUES ";
  switch (writer) {
    case "pg": return inboxPg.receive(pgPool(url), kind, id, (client) => client.query(effect + "($1, $2)", [kind, id]).then(end));
    case "mysql2": return inboxMysql2.receive(mysqlPool(url), kind, id, (conn) => conn.execute(effect + "(?, ?)", [kind, id]).then(end));
    default: {
      const client = mongoClient(url);
      return inboxMongodb.receive(client, kind, id, (session) => client.db().collection("effects").insertOne({ kind, id }, { session }).then(end));
    }
  }
}

async function answer(path: string, form: URLSearchParams): Promise<unknown> {
  const get = (key: string) => form.get(key)!;
  if (path === "/receive") return receive(form);
  const rest = [get("order"), get("status"), events(form), form.get("traceparent") ?? undefined] as const;
  switch (get("writer")) {
    case "pg": return outboxPg.save(pgPool(get("url")), ...rest);
    case "mysql2": return outboxMysql2.save(mysqlPool(get("url")), ...rest);
    default: return outboxMongodb.save(mongoClient(get("url")), ...rest);
  }
}

const receipted = receipts(process.env["RECEIPTS"]!, async (_, body) => (body.toString() === "refuse" ? 409 : 204),
  (id, chain) => appendFileSync(process.env["RECEIPTS"] + ".gaps", `${id} ${chain}\n`));

const server = createServer(async (request, response) => {
  if (request.url === "/receipt") return receipted(request, response as never);
  try {
    response.end(String(await answer(request.url!, new URLSearchParams(await text(request)))));
  } catch (err) {
    response.writeHead(409).end(String(err));
  }
});
server.listen(0, "127.0.0.1", () => console.log((server.address() as AddressInfo).port));
process.stdin.on("end", () => process.exit()).resume();
