-- Runs before the steps if versions 1 or 2 created the tables. Tables with ids, kinds and
-- groups are recreated, because these are now bytes of any length, which no charset
-- refuses. The checkpoint is cleared, so a snapshot of the outboxes finds the spilled rows.
UPDATE sluicebox_checkpoint SET origin = '', position = '';
DROP TABLE IF EXISTS sluicebox_parked, sluicebox_hold, sluicebox_replay_row, sluicebox_replay_error;
