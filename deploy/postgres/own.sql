-- The relay's rights on its own tables. Run it as the role that ran
-- `sluicebox init`, and again after an upgrade that made new ones:
--
--   psql -d shop -v relay=relay -f own.sql

\set ON_ERROR_STOP on

GRANT USAGE ON SCHEMA sluicebox TO :"relay";
GRANT SELECT ON sluicebox.meta TO :"relay";
GRANT SELECT, INSERT, UPDATE ON sluicebox.leader TO :"relay";
GRANT SELECT, INSERT, UPDATE, DELETE ON sluicebox.record TO :"relay";
GRANT SELECT, INSERT, DELETE ON sluicebox.queue TO :"relay";
