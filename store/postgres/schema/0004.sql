-- Step 4: who leads by name. Two servers may give out the same epoch, if the one
-- failed before it had told the other; so a write needs both.
ALTER TABLE sluicebox.leader ADD COLUMN holder text NOT NULL DEFAULT '';

UPDATE sluicebox.meta SET version = 4;
