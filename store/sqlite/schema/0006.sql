-- Step 6: a lane begins with 4 bytes of the SHA-256 of its kind, and 16 of that of kind,
-- NULL flag and group follow. What was parked is found by a snapshot of the outboxes,
-- since the checkpoint is forgotten.
DELETE FROM sluicebox_parked;
DELETE FROM sluicebox_hold;
DELETE FROM sluicebox_replay_row;
UPDATE sluicebox_checkpoint SET origin = '', position = '';

UPDATE sluicebox_meta SET version = 6;
