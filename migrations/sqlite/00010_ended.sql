-- +goose Up

-- 1: the sale has ended, and Redis was found to have none of its keys. Every change of
-- the item resets it to 0.
ALTER TABLE items ADD COLUMN freed INTEGER NOT NULL DEFAULT 0;

-- The sales that have an end and are still to be removed from Redis, by the end of the
-- last payment window. No column in it changes while a sale runs.
CREATE INDEX items_freeable ON items ((CASE control WHEN 'closed' THEN updated_at ELSE closes_at END + payment_window_seconds * 1000))
    WHERE freed = 0 AND (control = 'closed' OR closes_at > 0);

-- +goose Down
DROP INDEX items_freeable;
ALTER TABLE items DROP COLUMN freed;
