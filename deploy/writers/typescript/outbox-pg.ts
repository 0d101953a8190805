// A change of an order and its outbox rows, in one transaction: pg on PostgreSQL.
import { randomUUID } from "node:crypto";
import type { Pool } from "pg";

export type Event = { type: string; payload: unknown };

const insert = `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent)
  VALUES ($1, 'order', $2, $3, $4, $5)`;

export async function save(pool: Pool, order: string, status: string, events: Iterable<Event>, traceparent?: string): Promise<void> {
  const client = await pool.connect(); // pool.query would take another connection, outside the transaction
  let broken = false;
  try {
    await client.query("BEGIN");
    await client.query("UPDATE orders SET status = $1 WHERE id = $2", [status, order]); // locks the order
    for (const e of events) {
      await client.query(insert, [randomUUID(), order, e.type, JSON.stringify(e.payload), traceparent]);
    }
    await client.query("COMMIT");
  } catch (err) {
    await client.query("ROLLBACK").catch(() => (broken = true));
    throw err;
  } finally {
    client.release(broken);
  }
}
