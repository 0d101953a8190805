import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import javax.sql.DataSource;

/** Drops a message that arrives again, in the receiver's own transaction: JDBC. */
public class InboxJdbc {
    static final String POSTGRES = "INSERT INTO inbox (kind, id) VALUES (?, ?) ON CONFLICT DO NOTHING";
    static final String MYSQL = "INSERT INTO inbox (kind, id) VALUES (?, ?)"; // and MariaDB
    static final int ER_DUP_ENTRY = 1062; // of MySQL and MariaDB, after which the transaction goes on

    public interface Effect {
        void apply(Connection c) throws SQLException;
    }

    /** Returns whether it was the first. Acknowledge the message in both cases, and not after an exception. insert is POSTGRES or MYSQL. */
    public static boolean receive(DataSource db, String insert, String kind, String id, Effect effect) throws SQLException {
        try (Connection c = db.getConnection(); var s = c.prepareStatement(insert)) {
            c.setAutoCommit(false);
            try {
                s.setString(1, kind);
                s.setString(2, id);
                boolean first = isFirst(s);
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

    private static boolean isFirst(PreparedStatement insert) throws SQLException {
        try {
            return insert.executeUpdate() == 1; // waits for a copy that is being applied
        } catch (SQLException e) {
            if (e.getErrorCode() != ER_DUP_ENTRY) {
                throw e;
            }
            return false;
        }
    }
}
