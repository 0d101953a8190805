// A change of an order and its outbox documents, in one transaction: mongodb, a replica set.
import { randomUUID } from "node:crypto";
import type { MongoClient } from "mongodb";

export type Event = { type: string; payload: unknown };

export async function save(client: MongoClient, order: string, status: string, events: Iterable<Event>, traceparent?: string): Promise<void> {
  const db = client.db();
  const rows = Array.from(events, (e) => ({
    _id: randomUUID() as string, aggregatetype: "order", aggregateid: order, type: e.type, payload: JSON.stringify(e.payload),
    created_at: new Date(), ...(traceparent && { traceparent }),
  }));
  await client.withSession((session) =>
    session.withTransaction(async () => { // commits, or aborts at an exception; runs again at a conflict
      await db.collection<{ _id: string; status: string }>("orders").updateOne({ _id: order }, { $set: { status } }, { session });
      for (const row of rows) await db.collection<{ _id: string }>("outbox").insertOne(row, { session });
    }),
  );
}
