-- The relay's rights on one outbox table. Run it as the table's owner, once for
-- each table:
--
--   psql -d shop -v relay=relay -v table=outbox_events -f outbox.sql
--
-- By default these are the columns that the layout flowcatalyst writes. For
-- another layout, and where rows are deleted:
--
--   -v schema=shop                          the table's schema; default public
--   -v columns='sent_at, failed_at, error'  what the layout writes; the names as in SQL
--   -v delete=yes                           for delivered rows that are deleted (layout
--                                           outbox-messages, delete-delivered,
--                                           retention), and `sluicebox deadletters
--                                           discard`
--
-- The layout outbox-messages: -v table=outbox_messages -v delete=yes
--   -v columns='status, retry_count, updated_at, error_message'

\set ON_ERROR_STOP on
\if :{?schema}
\else
  \set schema public
\endif
\if :{?columns}
\else
  \set columns 'status, retry_count, processed_at, error_message'
\endif

GRANT SELECT, UPDATE (:columns) ON :"schema".:"table" TO :"relay";

\if :{?delete}
GRANT DELETE ON :"schema".:"table" TO :"relay";
\endif
