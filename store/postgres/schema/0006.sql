-- Step 6: ids, kinds and groups are bytes, in UTF-8, so that no encoding of the database
-- refuses one. lane is 4 bytes of the SHA-256 of the kind, followed by 16 bytes of the
-- SHA-256 of kind, NULL flag and group. The index takes ids of any length.
DROP INDEX sluicebox.parked_id;
DROP INDEX sluicebox.hold_id;

ALTER TABLE sluicebox.parked
  ALTER lane TYPE bytea USING substr(sha256(convert_to(kind, 'UTF8')), 1, 4) || substr(lane, 1, 16),
  ALTER id TYPE bytea USING convert_to(id, 'UTF8'),
  ALTER kind TYPE bytea USING convert_to(kind, 'UTF8'),
  ALTER message_group TYPE bytea USING convert_to(message_group, 'UTF8');

ALTER TABLE sluicebox.hold
  ALTER lane TYPE bytea USING substr(sha256(convert_to(kind, 'UTF8')), 1, 4) || substr(lane, 1, 16),
  ALTER id TYPE bytea USING convert_to(id, 'UTF8'),
  ALTER kind TYPE bytea USING convert_to(kind, 'UTF8'),
  ALTER message_group TYPE bytea USING convert_to(message_group, 'UTF8');

ALTER TABLE sluicebox.replay_row
  ALTER lane TYPE bytea USING substr(sha256(convert_to(kind, 'UTF8')), 1, 4) || substr(lane, 1, 16),
  ALTER id TYPE bytea USING convert_to(id, 'UTF8'),
  ALTER kind TYPE bytea USING convert_to(kind, 'UTF8'),
  ALTER message_group TYPE bytea USING convert_to(message_group, 'UTF8');

ALTER TABLE sluicebox.replay_error
  ALTER id TYPE bytea USING convert_to(id, 'UTF8'),
  ALTER kind TYPE bytea USING convert_to(kind, 'UTF8'),
  ALTER message_group TYPE bytea USING convert_to(message_group, 'UTF8');

CREATE INDEX parked_id ON sluicebox.parked (name COLLATE "POSIX", outbox COLLATE "POSIX", substr(id, 1, 512));
CREATE INDEX hold_id ON sluicebox.hold (name, outbox, substr(id, 1, 512));

UPDATE sluicebox.meta SET version = 6;
