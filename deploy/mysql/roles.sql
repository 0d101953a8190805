-- The accounts of a relay with no more rights than it needs. For MySQL and MariaDB.
-- Run it once, as an administrator:
--
--   mysql --init-command="SET @relay = 'relay', @stream = 'relay_stream'" < roles.sql
--
--   @relay    reads and writes the outbox rows and the relay's own tables
--   @stream   reads the binlog, and no table (source.stream-url)
--   @host     where they log in from, as in the name of an account; default '%'
--
-- An account that is not there yet is made without a password and locked. Let it in by
--
--   ALTER USER relay IDENTIFIED BY '…' ACCOUNT UNLOCK;
--
-- Both rights belong to the server, not to a database. The first one shows how far the
-- binlog goes (MariaDB calls it BINLOG MONITOR). The second one shows every row of every
-- database as it is written, so it has an account of its own.
--
-- Next: own.sql and outbox.sql.

SET @host = COALESCE(@host, '%');
SET @relay_account = CONCAT(QUOTE(@relay), '@', QUOTE(@host));
SET @stream_account = CONCAT(QUOTE(@stream), '@', QUOTE(@host));

SET @statement = CONCAT('CREATE USER IF NOT EXISTS ', @relay_account, ' ACCOUNT LOCK');
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('CREATE USER IF NOT EXISTS ', @stream_account, ' ACCOUNT LOCK');
PREPARE step FROM @statement;
EXECUTE step;

SET @statement = CONCAT('GRANT REPLICATION CLIENT ON *.* TO ', @relay_account);
PREPARE step FROM @statement;
EXECUTE step;
SET @statement = CONCAT('GRANT REPLICATION SLAVE ON *.* TO ', @stream_account);
PREPARE step FROM @statement;
EXECUTE step;
DEALLOCATE PREPARE step;
