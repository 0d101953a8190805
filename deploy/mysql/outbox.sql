-- The relay's rights on one outbox table. For MySQL and MariaDB. Run it as an
-- administrator, once for each table:
--
--   mysql shop --init-command="SET @relay = 'relay', @table = 'outbox_events'" < outbox.sql
--
--   @relay     the account
--   @host      its host, as in roles.sql; default '%'
--   @table     the outbox table
--   @schema    the table's database; default the one of the session
--
-- By default these are the columns that the layout flowcatalyst writes. For another
-- layout, and where rows are deleted:
--
--   @columns = 'sent_at, failed_at, error'  what the layout writes; the names as in SQL
--   @delete = 'yes'                         for delivered rows that are deleted (layout
--                                           outbox-messages, delete-delivered,
--                                           retention), and `sluicebox deadletters
--                                           discard`
--
-- The layout outbox-messages: @table = 'outbox_messages', @delete = 'yes',
--   @columns = 'status, retry_count, updated_at, error_message'

SET @host = COALESCE(@host, '%');
SET @account = CONCAT(QUOTE(@relay), '@', QUOTE(@host));
SET @columns = COALESCE(@columns, 'status, retry_count, processed_at, error_message');
SET @whole = CONCAT('`', REPLACE(COALESCE(@schema, DATABASE()), '`', '``'), '`.`', REPLACE(@table, '`', '``'), '`');

SET @statement = CONCAT('GRANT SELECT, UPDATE (', @columns, ')', IF(@delete = 'yes', ', DELETE', ''), ' ON ', @whole, ' TO ', @account);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;
