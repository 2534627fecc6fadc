-- +goose Up

-- Increased by 1 in every transaction that changes the item, its orders or its
-- payments. Redis keeps the highest one that was committed: a database with a lower
-- one was restored from a backup.
ALTER TABLE items ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;

-- The revision recorded in Redis when this database was found to be older; 0: it was
-- not. It stays until an operator has decided, no matter what is committed meanwhile. A
-- newer file that replaces this one does not have it.
ALTER TABLE items ADD COLUMN behind INTEGER NOT NULL DEFAULT 0;
CREATE INDEX items_behind ON items (id) WHERE behind > 0;

-- A database that was created before step 1 gave it a lineage gets the time at which it was
-- created, which its backups share. It keeps it below: Redis knows the database by it.
INSERT INTO meta (key, value) SELECT 'lineage', strftime('%s', tstamp) FROM goose_db_version WHERE version_id = 1
ORDER BY id LIMIT 1 ON CONFLICT DO NOTHING;

-- +goose Down
DROP INDEX items_behind;
ALTER TABLE items DROP COLUMN behind;
ALTER TABLE items DROP COLUMN revision;
