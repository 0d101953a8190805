// Drops a message that arrives again, in the receiver's own transaction: pg on PostgreSQL.
import type { Pool, PoolClient } from "pg";

const insert = "INSERT INTO inbox (kind, id) VALUES ($1, $2) ON CONFLICT DO NOTHING";

// receive returns whether it was the first. Acknowledge the message in both cases, and not after an exception.
export async function receive(pool: Pool, kind: string, id: string, apply: (client: PoolClient) => Promise<void>): Promise<boolean> {
  const client = await pool.connect();
  let broken = false;
  try {
    await client.query("BEGIN");
    const first = (await client.query(insert, [kind, id])).rowCount === 1; // waits for a copy that is being applied
    if (first) await apply(client);
    await client.query("COMMIT");
    return first;
  } catch (err) {
    await client.query("ROLLBACK").catch(() => (broken = true));
    throw err;
  } finally {
    client.release(broken);
  }
}
