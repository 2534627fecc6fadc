-- +goose Up

-- How far an item's live sale has come: the highest number of a script whose
-- orders are rows, or whose returned units are settled. A sale in Redis that
-- stands at less has come back with older data, and is built anew.
ALTER TABLE items ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE items DROP COLUMN sequence;
