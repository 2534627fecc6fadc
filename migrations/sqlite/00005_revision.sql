-- +goose Up

-- Increased by 1 in every transaction that changes the item, its orders or its
-- payments. Redis keeps the highest one that was committed: a database with a lower
-- one was restored from a backup.
ALTER TABLE items ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;

-- Names this database and every backup of it. Redis compares revisions of the same
-- lineage only: a new database that meets the Redis of another starts at 0.
INSERT INTO meta (key, value) VALUES ('lineage', lower(hex(randomblob(8))));

-- +goose Down
DELETE FROM meta WHERE key = 'lineage';
ALTER TABLE items DROP COLUMN revision;
