-- An account that looks and changes nothing, for `sluicebox deadletters list` and `show`,
-- and for dashboards. For MySQL and MariaDB. `sluicebox status` and `lanes` need no
-- account: they ask the relay. Run it as an administrator, in the database of the URL,
-- after `sluicebox init`, once for each outbox table:
--
--   mysql shop --init-command="SET @reader = 'relay_reader', @table = 'outbox_events'" < reader.sql
--
--   @reader    the account; it is made as in roles.sql
--   @host      its host; default '%'
--   @table     an outbox table
--   @schema    the table's database; default the one of the session
--
-- `deadletters list` asks every table of the configuration: for an account that was given
-- some of them alone, name one (`--outbox outbox_events`). That a table is refused to it
-- is mended here, and not by what `sluicebox doctor` lists: that is what a relay needs,
-- which writes.
--
-- It sees payloads: also the list reads them, for their size.

SET @host = COALESCE(@host, '%');
SET @account = CONCAT(QUOTE(@reader), '@', QUOTE(@host));
SET @whole = CONCAT('`', REPLACE(COALESCE(@schema, DATABASE()), '`', '``'), '`.`', REPLACE(@table, '`', '``'), '`');

SET @statement = CONCAT('CREATE USER IF NOT EXISTS ', @account, ' ACCOUNT LOCK');
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT SELECT ON ', @whole, ' TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT SELECT ON sluicebox_meta TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT SELECT ON sluicebox_leader TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT SELECT ON sluicebox_record TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT SELECT ON sluicebox_queue TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT SELECT ON sluicebox_replay TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
-- The views of these tables, if the account that made the tables could make views.
SET @statement = IF((SELECT COUNT(*) FROM information_schema.views WHERE table_schema = DATABASE() AND table_name = 'sluicebox_jobs') = 1,
  CONCAT('GRANT SELECT ON sluicebox_jobs TO ', @account), 'DO 0');
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = IF((SELECT COUNT(*) FROM information_schema.views WHERE table_schema = DATABASE() AND table_name = 'sluicebox_spilled') = 1,
  CONCAT('GRANT SELECT ON sluicebox_spilled TO ', @account), 'DO 0');
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;
