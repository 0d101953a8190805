-- Step 3: ids, kinds and groups are bytes of any length. Tables that versions 1 and 2 made
-- have another form, and run or init makes them anew; this script leaves them as they are.
INSERT INTO sluicebox_meta (one, version) VALUES (1, 3) ON DUPLICATE KEY UPDATE version = 3;
