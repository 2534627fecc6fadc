-- +goose Up

-- Into how many buckets the item's stock is divided; 1: it is not. Bucket 0 is the item's own
-- row; bucket n has the id of the item followed by a point and n.
ALTER TABLE items ADD COLUMN buckets BIGINT NOT NULL DEFAULT 1 CHECK (buckets BETWEEN 1 AND 64);

-- +goose Down
ALTER TABLE items DROP COLUMN buckets;
