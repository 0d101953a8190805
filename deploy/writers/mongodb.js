// The outbox of a service, on MongoDB. A document needs no fields for the relay.
db.createCollection("outbox");
db.getCollection("outbox").createIndex({"sent_at": 1, "failed_at": 1, "created_at": 1, "_id": 1});
