// Drops a message that arrives again, in the receiver's own transaction: mysql2 on MySQL and MariaDB.
import type { Pool, PoolConnection } from "mysql2/promise";

const insert = "INSERT INTO inbox (kind, id) VALUES (?, ?)";

// receive returns whether it was the first. Acknowledge the message in both cases, and not after an exception.
export async function receive(pool: Pool, kind: string, id: string, apply: (conn: PoolConnection) => Promise<void>): Promise<boolean> {
  const conn = await pool.getConnection();
  try {
    await conn.beginTransaction();
    const first = await conn.execute(insert, [kind, id]).then( // waits for a copy that is being applied
      () => true,
      (err) => {
        if (err.errno !== 1062) throw err; // ER_DUP_ENTRY, after which the transaction goes on
        return false;
      },
    );
    if (first) await apply(conn);
    await conn.commit();
    conn.release();
    return first;
  } catch (err) {
    conn.destroy(); // the server rolls back; the pool opens another connection
    throw err;
  }
}
