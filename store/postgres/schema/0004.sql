-- Step 4: the holder of the leadership. Two servers can assign the same epoch, if the first
-- failed before it had replicated it. So a write checks the epoch and the holder.
ALTER TABLE sluicebox.leader ADD COLUMN holder text NOT NULL DEFAULT '';

UPDATE sluicebox.meta SET version = 4;
