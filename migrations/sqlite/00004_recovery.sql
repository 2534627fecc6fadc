-- +goose Up

-- The progress of an item's live sale: the highest number of a script whose orders are
-- rows or whose returned units are recorded. A sale in Redis with a lower number has
-- been restored from older data, and is rebuilt.
ALTER TABLE items ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE items DROP COLUMN sequence;
