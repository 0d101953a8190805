import java.sql.Connection;
import java.sql.SQLException;
import javax.sql.DataSource;

/** Drops a message that arrives again, in the receiver's own transaction: JDBC on PostgreSQL. */
public class Inbox {
    static final String INSERT = "INSERT INTO inbox (kind, id) VALUES (?, ?) ON CONFLICT DO NOTHING";

    public interface Effect {
        void apply(Connection c) throws SQLException;
    }

    /** Returns whether it was the first. Acknowledge the message in both cases, and not after an exception. */
    public static boolean receive(DataSource db, String kind, String id, Effect effect) throws SQLException {
        try (Connection c = db.getConnection(); var insert = c.prepareStatement(INSERT)) {
            c.setAutoCommit(false);
            try {
                insert.setString(1, kind);
                insert.setString(2, id);
                boolean first = insert.executeUpdate() == 1; // waits for a copy that is being applied
                if (first) {
                    effect.apply(c);
                }
                c.commit();
                return first;
            } catch (SQLException | RuntimeException e) {
                c.rollback(); // before a pool lends the connection again
                throw e;
            }
        }
    }
}
