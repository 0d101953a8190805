// A change of an order and its outbox rows, in one transaction: mysql2 on MySQL and MariaDB.
import { randomUUID } from "node:crypto";
import type { Pool } from "mysql2/promise";

export type Event = { type: string; payload: unknown };

const insert = `INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent)
  VALUES (?, 'order', ?, ?, ?, ?)`;

export async function save(pool: Pool, order: string, status: string, events: Iterable<Event>, traceparent?: string): Promise<void> {
  const conn = await pool.getConnection(); // pool.execute would take another connection, outside the transaction
  try {
    await conn.beginTransaction();
    await conn.execute("UPDATE orders SET status = ? WHERE id = ?", [status, order]); // locks the order
    for (const e of events) {
      await conn.execute(insert, [randomUUID(), order, e.type, JSON.stringify(e.payload), traceparent ?? null]);
    }
    await conn.commit();
    conn.release();
  } catch (err) {
    conn.destroy(); // the server rolls back; the pool opens another connection
    throw err;
  }
}
