-- Step 3: ids, kinds and groups are bytes of any length. sluicebox run or init recreates
-- the tables that versions 1 and 2 created. This script leaves them as they are.
INSERT INTO sluicebox_meta (one, version) VALUES (1, 3) ON DUPLICATE KEY UPDATE version = 3;
