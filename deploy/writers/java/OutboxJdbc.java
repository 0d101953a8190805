import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.util.Map;
import java.util.UUID;
import javax.sql.DataSource;

/** A change of an order and its outbox rows, in one transaction: JDBC. */
public class OutboxJdbc {
    static final String UPDATE = "UPDATE orders SET status = ? WHERE id = ?";
    static final String POSTGRES = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent) VALUES (?::uuid, 'order', ?, ?, ?::jsonb, ?)";
    static final String MYSQL = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent) VALUES (?, 'order', ?, ?, ?, ?)"; // and MariaDB

    /** Events are pairs of a type and a payload in JSON. insert is POSTGRES or MYSQL. traceparent may be null. */
    public static void save(DataSource db, String insert, String order, String status, Iterable<Map.Entry<String, String>> events, String traceparent)
            throws SQLException {
        try (Connection c = db.getConnection()) {
            c.setAutoCommit(false);
            try {
                run(c, UPDATE, status, order); // locks the order
                for (var e : events) {
                    run(c, insert, UUID.randomUUID().toString(), order, e.getKey(), e.getValue(), traceparent);
                }
                c.commit();
            } catch (SQLException | RuntimeException e) {
                c.rollback(); // before a pool lends the connection again
                throw e;
            }
        }
    }

    private static void run(Connection c, String sql, String... values) throws SQLException {
        try (PreparedStatement s = c.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) {
                s.setString(i + 1, values[i]);
            }
            s.executeUpdate();
        }
    }
}
