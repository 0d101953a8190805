-- The roles of a relay with no more rights than it needs. Run it once, in the
-- outbox database, as an administrator:
--
--   psql -d shop -v relay=relay -v stream=relay_stream -v owner=shop -f roles.sql
--
--   relay   reads and writes the outbox rows and the relay's own tables
--   stream  reads the log, and no table (source.stream-url)
--   owner   owns the outbox tables; `sluicebox init` runs as this role. Left out:
--           it may create schemas and publications in the database as it is
--   schema  the outbox tables' schema; default public. Run it again for another
--
-- REPLICATION lets a role read every table of the server through its log: give
-- the stream's password to nobody else. Who makes a role with it must be a
-- superuser, or since version 16 have CREATEROLE and REPLICATION. Managed services
-- grant it by other means, such as GRANT rds_replication.
--
-- No role of a running relay needs more: not superuser, not pg_signal_backend, and
-- neither needs to be a member of the other. A new leader ends the session of the
-- old one as the role that opened it.
--
-- Then:
--   1. give both a password: \password relay
--   2. keep the stream from base backups, in pg_hba.conf, and reload:
--        host  replication  relay_stream  all         reject
--        host  shop         relay_stream  10.0.0.0/8  scram-sha-256
--        host  shop         relay         10.0.0.0/8  scram-sha-256
--   3. as the owner: sluicebox init -c FILE, or what `sluicebox init --print` shows
--   4. as the owner: own.sql, and outbox.sql for each outbox table

\set ON_ERROR_STOP on
\if :{?schema}
\else
  \set schema public
\endif

SELECT format('CREATE ROLE %I LOGIN', :'relay')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'relay')
\gexec
SELECT format('CREATE ROLE %I LOGIN REPLICATION', :'stream')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'stream')
\gexec

GRANT CONNECT ON DATABASE :"DBNAME" TO :"relay", :"stream";
GRANT USAGE ON SCHEMA :"schema" TO :"relay";

\if :{?owner}
-- A schema and a publication are made in a database. Once init has run it may be
-- revoked.
GRANT CREATE ON DATABASE :"DBNAME" TO :"owner";
\endif
