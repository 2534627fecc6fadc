-- +goose Up

-- Into how many buckets the item's stock is divided; 1: it is not. Bucket 0 is the item's own
-- row; bucket n has the id of the item followed by a point and n.
ALTER TABLE items ADD COLUMN buckets BIGINT NOT NULL DEFAULT 1 CHECK (buckets BETWEEN 1 AND 64);

-- How many changes of the row have only moved units to or from another bucket. They are counted in
-- its version, which the sale in Redis compares, and not in the one that clients see.
ALTER TABLE items ADD COLUMN moves BIGINT NOT NULL DEFAULT 0;

CREATE INDEX items_divided ON items (id) WHERE buckets > 1;

-- +goose Down

-- Without these columns, buckets would be items of their own. So this fails while an item is divided.
CREATE TABLE undivided (divided_items INTEGER CHECK (divided_items = 0));
INSERT INTO undivided (divided_items) SELECT count(*) FROM items WHERE buckets > 1;
DROP TABLE undivided;

DROP INDEX items_divided;
ALTER TABLE items DROP COLUMN moves;
ALTER TABLE items DROP COLUMN buckets;
