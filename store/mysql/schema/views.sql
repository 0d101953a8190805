-- The views are for operators; the relay does not read them. An account that reads a view
-- needs SELECT on its tables too.

-- The replays.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW sluicebox_jobs AS
SELECT CONVERT(j.name USING utf8mb4) AS name, JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.id')) AS job,
  JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.state')) AS state, JSON_UNQUOTE(JSON_EXTRACT(s.body, '$.desired')) AS desired,
  JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.reason')) AS reason, JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.waitsFor')) AS waits_for,
  JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.source')) AS source,
  CAST(JSON_EXTRACT(j.body, '$.total') AS SIGNED) AS total, CAST(JSON_EXTRACT(j.body, '$.sent') AS SIGNED) AS sent,
  CAST(JSON_EXTRACT(j.body, '$.skipped') AS SIGNED) AS skipped, CAST(JSON_EXTRACT(j.body, '$.refused') AS SIGNED) AS refused,
  JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.requestedAt')) AS requested_at, JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.startedAt')) AS started_at,
  JSON_UNQUOTE(JSON_EXTRACT(j.body, '$.finishedAt')) AS finished_at
FROM sluicebox_record AS j LEFT JOIN sluicebox_record AS s ON s.name = j.name AND s.kind = 'job-spec' AND s.record_key = j.record_key
WHERE j.kind = 'job';

-- The spilled rows.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW sluicebox_spilled AS
SELECT CONVERT(name USING utf8mb4) AS name, CONVERT(outbox USING utf8mb4) AS outbox, CONVERT(kind USING utf8mb4) AS kind,
  CONVERT(message_group USING utf8mb4) AS message_group, n AS seq, CONVERT(id USING utf8mb4) AS id, retry_count, payload_size, committed_at
FROM sluicebox_queue;
