-- Step 4: who leads by name. A copy of the file may give out the same epoch again;
-- so a write needs both.
ALTER TABLE sluicebox_leader ADD COLUMN holder TEXT NOT NULL DEFAULT '';

UPDATE sluicebox_meta SET version = 4;
