// Drops a message that arrives again, in the receiver's own transaction: mongodb, a replica set.
import type { ClientSession, MongoClient } from "mongodb";

// receive returns whether it was the first. Acknowledge the message in both cases, and not after an exception. apply may run twice.
export async function receive(client: MongoClient, kind: string, id: string, apply: (session: ClientSession) => Promise<void>): Promise<boolean> {
  const inbox = client.db().collection<{ _id: { kind: string; id: string }; receivedAt: Date }>("inbox");
  return client.withSession((session) =>
    session.withTransaction(async () => { // runs again while a copy is being applied
      const key = { _id: { kind, id } }; // in this order
      const done = await inbox.updateOne(key, { $setOnInsert: { receivedAt: new Date() } }, { upsert: true, session });
      if (done.upsertedCount === 1) await apply(session);
      return done.upsertedCount === 1;
    }),
  );
}
