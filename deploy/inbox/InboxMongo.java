import com.mongodb.client.ClientSession;
import com.mongodb.client.MongoClient;
import com.mongodb.client.model.UpdateOptions;
import java.util.Date;
import java.util.function.Consumer;
import org.bson.Document;

import static com.mongodb.client.model.Filters.eq;
import static com.mongodb.client.model.Updates.setOnInsert;

/** Drops a message that arrives again, in the receiver's own transaction: the synchronous driver, a MongoDB replica set. */
public class InboxMongo {
    /** Returns whether it was the first. Acknowledge the message in both cases, and not after an exception. effect may run twice. */
    public static boolean receive(MongoClient client, String database, String kind, String id, Consumer<ClientSession> effect) {
        var inbox = client.getDatabase(database).getCollection("inbox");
        var key = new Document("kind", kind).append("id", id); // in this order
        try (var session = client.startSession()) {
            return session.withTransaction(() -> { // runs again while a copy is being applied
                var done = inbox.updateOne(session, eq(key), setOnInsert("receivedAt", new Date()), new UpdateOptions().upsert(true));
                boolean first = done.getUpsertedId() != null;
                if (first) {
                    effect.accept(session);
                }
                return first;
            });
        }
    }
}
