-- +goose Up

-- The lists of orders that ended without money staying, by state, newest first. Most
-- orders of a sale never reach one of these states, and adding an order to the table
-- costs nothing here.
CREATE INDEX orders_ended ON orders (status, id) WHERE status IN ('rejected', 'cancelled', 'expired', 'refunded');
CREATE INDEX orders_item_ended ON orders (item_id, status, id) WHERE status IN ('rejected', 'cancelled', 'expired', 'refunded');

-- An erasure renames a buyer's orders in Redis and here together, and owes nothing.
DELETE FROM meta WHERE key LIKE 'rebuild:%';

-- +goose Down
DROP INDEX orders_item_ended;
DROP INDEX orders_ended;
