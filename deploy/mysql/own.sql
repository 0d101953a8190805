-- The relay's rights on its own tables. For MySQL and MariaDB. Run it as an
-- administrator, in the database of the URL, after `sluicebox init`, and again after an
-- upgrade that made new tables:
--
--   mysql shop --init-command="SET @relay = 'relay'" < own.sql
--
--   @relay         the account
--   @host          its host, as in roles.sql; default '%'
--   @create        'yes': the relay may make these tables and views, and no others. Then no
--                  account but the relay's is needed for `sluicebox init`, and `sluicebox
--                  run` makes them too. Run it before them

SET @host = COALESCE(@host, '%');
SET @account = CONCAT(QUOTE(@relay), '@', QUOTE(@host));
SET @make = IF(@create = 'yes', 'CREATE, ', '');

-- Whoever makes the tables writes their version.
SET @statement = CONCAT('GRANT ', @make, IF(@create = 'yes', 'INSERT, UPDATE, ', ''), 'SELECT ON sluicebox_meta TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT ', @make, 'SELECT, INSERT, UPDATE ON sluicebox_leader TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT ', @make, 'SELECT, INSERT, UPDATE, DELETE ON sluicebox_record TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT ', @make, 'SELECT, INSERT, DELETE ON sluicebox_queue TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT ', @make, 'SELECT, INSERT, DELETE ON sluicebox_replay TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT ', @make, 'SELECT, INSERT, UPDATE ON sluicebox_marker TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
-- The views for operators. A relay that may not make them works without them.
SET @statement = IF(@create = 'yes', CONCAT('GRANT CREATE, CREATE VIEW, DROP ON sluicebox_jobs TO ', @account), 'DO 0');
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = IF(@create = 'yes', CONCAT('GRANT CREATE, CREATE VIEW, DROP ON sluicebox_spilled TO ', @account), 'DO 0');
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;
