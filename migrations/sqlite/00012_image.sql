-- +goose Up

-- The path of the item's image on the shop's own address; '': none.
ALTER TABLE items ADD COLUMN image_url TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE items DROP COLUMN image_url;
