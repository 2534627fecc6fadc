-- +goose Up

-- The units of an item's orders that are confirmed and await payment: the held part of
-- sold, without reading the orders. Triggers maintain it, so that it includes every
-- statement that changes an order, in the same transaction, even one of an older version
-- of the program.
ALTER TABLE items ADD COLUMN awaiting INTEGER NOT NULL DEFAULT 0;

-- The condition is that of the index orders_due, so this reads only such orders.
UPDATE items SET awaiting = due.units
FROM (SELECT item_id, SUM(quantity) AS units FROM orders WHERE status = 'confirmed' AND expires_at > 0 GROUP BY item_id) AS due
WHERE due.item_id = items.id;

-- +goose StatementBegin
CREATE TRIGGER orders_awaiting_new AFTER INSERT ON orders
WHEN NEW.status = 'confirmed' AND NEW.expires_at > 0
BEGIN
    UPDATE items SET awaiting = awaiting + NEW.quantity WHERE id = NEW.item_id;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER orders_awaiting_changed AFTER UPDATE OF status, expires_at ON orders
WHEN (OLD.status = 'confirmed' AND OLD.expires_at > 0) <> (NEW.status = 'confirmed' AND NEW.expires_at > 0)
BEGIN
    UPDATE items SET awaiting = awaiting + CASE WHEN OLD.status = 'confirmed' AND OLD.expires_at > 0 THEN -OLD.quantity ELSE NEW.quantity END
    WHERE id = NEW.item_id;
END;
-- +goose StatementEnd

-- +goose Down
DROP TRIGGER orders_awaiting_changed;
DROP TRIGGER orders_awaiting_new;
ALTER TABLE items DROP COLUMN awaiting;
