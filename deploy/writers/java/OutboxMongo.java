import com.mongodb.client.MongoClient;
import java.util.ArrayList;
import java.util.Date;
import java.util.Map;
import java.util.UUID;
import org.bson.Document;

import static com.mongodb.client.model.Filters.eq;
import static com.mongodb.client.model.Updates.set;

/** A change of an order and its outbox documents, in one transaction: the synchronous driver, a MongoDB replica set. */
public class OutboxMongo {
    /** Events are pairs of a type and a payload in JSON. traceparent may be null. */
    public static void save(MongoClient client, String database, String order, String status, Iterable<Map.Entry<String, String>> events, String traceparent) {
        var rows = new ArrayList<Document>(); // before the transaction, because withTransaction may run twice
        for (var e : events) {
            var row = new Document("_id", UUID.randomUUID().toString()).append("aggregatetype", "order").append("aggregateid", order)
                    .append("type", e.getKey()).append("payload", e.getValue());
            rows.add(traceparent == null ? row : row.append("traceparent", traceparent));
        }
        var db = client.getDatabase(database);
        try (var session = client.startSession()) {
            session.withTransaction(() -> { // commits, or aborts at an exception; retries conflicts
                db.getCollection("orders").updateOne(session, eq(order), set("status", status)); // conflicts with others
                for (var row : rows) {
                    db.getCollection("outbox").insertOne(session, row.append("created_at", new Date()));
                }
                return null;
            });
        }
    }
}
