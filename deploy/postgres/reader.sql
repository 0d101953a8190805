-- A role that looks and changes nothing, for `sluicebox deadletters list` and
-- `show`, and for dashboards. `sluicebox status` and `lanes` need no role: they ask
-- the relay. Run it as an administrator, after `sluicebox init`, once for each
-- outbox table:
--
--   psql -d shop -v reader=relay_reader -v table=outbox_events -f reader.sql
--
--   -v schema=shop       the table's schema; default public
--
-- `deadletters list` asks every table of the configuration: for a role that was given
-- some of them alone, name one (`--outbox outbox_events`). That a table is refused to
-- it is mended here, and not by what `sluicebox doctor` lists: that is what a relay
-- needs, which writes.
--
-- It sees payloads: also the list reads them, for their size.

\set ON_ERROR_STOP on
\if :{?schema}
\else
  \set schema public
\endif

SELECT format('CREATE ROLE %I LOGIN', :'reader')
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'reader')
\gexec

GRANT CONNECT ON DATABASE :"DBNAME" TO :"reader";
GRANT USAGE ON SCHEMA sluicebox, :"schema" TO :"reader";
GRANT SELECT ON ALL TABLES IN SCHEMA sluicebox TO :"reader";
GRANT SELECT ON :"schema".:"table" TO :"reader";
