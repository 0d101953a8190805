// A user who looks and changes nothing, for `sluicebox deadletters list` and `show`,
// `checkpoint list`, `replay list` and `errors`, and for dashboards. `sluicebox status` and
// `lanes` need no user: they ask the relay. Put your own names in place of shop,
// relay_reader and the collections, and run it as an administrator:
//
//   mongosh "mongodb://admin@db.example/?authSource=admin" reader.js
//
// It sees payloads: also the list reads them, for their size.
db.getSiblingDB("shop").createRole({role: "relay_look", roles: [], privileges: [
  {resource: {db: "shop", collection: "outbox_events"}, actions: ["find"]},
  {resource: {db: "shop", collection: "outbox_dispatch_jobs"}, actions: ["find"]},
  {resource: {db: "shop", collection: "sluicebox_meta"}, actions: ["find"]},
  {resource: {db: "shop", collection: "sluicebox_leader"}, actions: ["find"]},
  {resource: {db: "shop", collection: "sluicebox_lease"}, actions: ["find"]},
  {resource: {db: "shop", collection: "sluicebox_record"}, actions: ["find"]},
  {resource: {db: "shop", collection: "sluicebox_queue"}, actions: ["find"]},
  {resource: {db: "shop", collection: "sluicebox_marker"}, actions: ["find"]}
]});
db.getSiblingDB("shop").createUser({user: "relay_reader", pwd: passwordPrompt(), roles: ["relay_look"]});
