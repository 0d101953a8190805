// The roles of a relay with no more rights than it needs, for a database shop with the
// two collections of the layout flowcatalyst. Put your own names in place of shop,
// relay and the collections, and run it once, as an administrator:
//
//   mongosh "mongodb://admin@db.example/?authSource=admin" roles.js
//
// relay_work reads and writes the outbox documents and the relay's own collections.
// remove is for delivered documents that are deleted (layout outbox-messages,
// delete-delivered, retention), and for `sluicebox deadletters discard`: leave it out
// where that is not wanted.
db.getSiblingDB("shop").createRole({role: "relay_work", roles: [], privileges: [
  {resource: {db: "shop", collection: "outbox_events"}, actions: ["find", "update", "remove", "listIndexes"]},
  {resource: {db: "shop", collection: "outbox_dispatch_jobs"}, actions: ["find", "update", "remove", "listIndexes"]},
  {resource: {db: "shop", collection: "sluicebox_meta"}, actions: ["find", "insert", "update"]},
  {resource: {db: "shop", collection: "sluicebox_leader"}, actions: ["find", "insert", "update"]},
  {resource: {db: "shop", collection: "sluicebox_lease"}, actions: ["find", "insert", "update"]},
  {resource: {db: "shop", collection: "sluicebox_record"}, actions: ["find", "insert", "update", "remove"]},
  {resource: {db: "shop", collection: "sluicebox_queue"}, actions: ["find", "insert", "remove"]},
  {resource: {db: "shop", collection: "sluicebox_marker"}, actions: ["find", "insert", "update"]}
]});
// relay_make lets the relay make its own collections, in init or in run. Without it let
// a user make them who may: `sluicebox init --print` shows what that takes.
db.getSiblingDB("shop").createRole({role: "relay_make", roles: [], privileges: [
  {resource: {db: "shop", collection: "sluicebox_meta"}, actions: ["createCollection", "createIndex"]},
  {resource: {db: "shop", collection: "sluicebox_leader"}, actions: ["createCollection", "createIndex"]},
  {resource: {db: "shop", collection: "sluicebox_lease"}, actions: ["createCollection", "createIndex"]},
  {resource: {db: "shop", collection: "sluicebox_record"}, actions: ["createCollection", "createIndex"]},
  {resource: {db: "shop", collection: "sluicebox_queue"}, actions: ["createCollection", "createIndex"]},
  {resource: {db: "shop", collection: "sluicebox_marker"}, actions: ["createCollection", "createIndex"]}
]});
// relay_stream reads the change stream of the database, and so all of its collections.
// The oplog's size says how much of it is behind the relay, and replSetGetConfig tells
// the set from another one of its name.
db.getSiblingDB("admin").createRole({role: "relay_stream", roles: [], privileges: [
  {resource: {db: "shop", collection: ""}, actions: ["changeStream", "find"]},
  {resource: {db: "local", collection: "oplog.rs"}, actions: ["find", "collStats"]},
  {resource: {cluster: true}, actions: ["replSetGetConfig"]}
]});
// The passwords are asked for.
db.getSiblingDB("shop").createUser({user: "relay", pwd: passwordPrompt(), roles: ["relay_work", "relay_make"]});
db.getSiblingDB("shop").createUser({user: "relay_stream", pwd: passwordPrompt(), roles: [{role: "relay_stream", db: "admin"}]});
