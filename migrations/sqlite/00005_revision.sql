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

-- Names this database and every backup of it, older ones than this column as well:
-- the time at which the database was created. Redis records revisions by lineage.
INSERT INTO meta (key, value) SELECT 'lineage', strftime('%s', tstamp) FROM goose_db_version WHERE version_id = 1
ORDER BY id LIMIT 1;

-- +goose Down
DELETE FROM meta WHERE key = 'lineage';
DROP INDEX items_behind;
ALTER TABLE items DROP COLUMN behind;
ALTER TABLE items DROP COLUMN revision;
