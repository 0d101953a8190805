import java.util.Map;
import java.util.UUID;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.stereotype.Service;
import org.springframework.transaction.annotation.Transactional;

/** A change of an order and its outbox rows, in one transaction: Spring on PostgreSQL. */
@Service
public class OutboxSpring {
    // On MySQL and MariaDB leave out ::uuid and ::jsonb.
    static final String INSERT = "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload, traceparent) VALUES (?::uuid, 'order', ?, ?, ?::jsonb, ?)";

    private final JdbcTemplate db;

    public OutboxSpring(JdbcTemplate db) {
        this.db = db;
    }

    /** Events are pairs of a type and a payload in JSON. Call it from another bean: a call within the class has no transaction. */
    @Transactional(rollbackFor = Exception.class) // by default a checked exception commits
    public void save(String order, String status, Iterable<Map.Entry<String, String>> events, String traceparent) {
        db.update("UPDATE orders SET status = ? WHERE id = ?", status, order); // locks the order
        for (var e : events) {
            db.update(INSERT, UUID.randomUUID().toString(), order, e.getKey(), e.getValue(), traceparent);
        }
    }
}
