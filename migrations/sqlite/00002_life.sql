-- +goose Up

-- The orders that lapse unless they are paid, by when: what the sweeper looks
-- for. An order that asks for no payment, or is settled, has no place in it.
CREATE INDEX orders_due ON orders (expires_at, id) WHERE status = 'confirmed' AND expires_at > 0;

-- Money that the shop's backend has told of, each reference once. What did not
-- pay its order is to be refunded: 'late' came when the order was closed or its
-- window over, 'duplicate' when another reference had paid it.
CREATE TABLE payments (
    reference    TEXT    NOT NULL PRIMARY KEY CHECK (length(reference) BETWEEN 1 AND 255),
    order_id     TEXT    NOT NULL,
    amount_minor INTEGER NOT NULL CHECK (amount_minor >= 0),
    currency     TEXT    NOT NULL,
    outcome      TEXT    NOT NULL CHECK (outcome IN ('paid', 'late', 'duplicate')),
    received_at  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX payments_order ON payments (order_id);
CREATE INDEX payments_refund ON payments (received_at) WHERE outcome <> 'paid';

-- An order is paid by one payment at most, whatever the code above does.
CREATE UNIQUE INDEX payments_paid ON payments (order_id) WHERE outcome = 'paid';

-- Units of closed orders that Redis has yet to be told of: written with the
-- order's change, deleted once the units are back.
CREATE TABLE releases (
    order_id        TEXT    NOT NULL PRIMARY KEY,
    item_id         TEXT    NOT NULL,
    user_id         TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    quantity        INTEGER NOT NULL CHECK (quantity > 0),
    created_at      INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX releases_item ON releases (item_id, order_id);

-- The ledger of items.total: initial plus these is total.
CREATE TABLE stock_changes (
    id              INTEGER PRIMARY KEY,
    item_id         TEXT    NOT NULL,
    quantity        INTEGER NOT NULL CHECK (quantity <> 0),
    reason          TEXT    NOT NULL,
    actor           TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    total_after     INTEGER NOT NULL CHECK (total_after >= 0),
    at              INTEGER NOT NULL,
    UNIQUE (item_id, idempotency_key)
);

-- Who changed what. before and after are JSON; what concerns no item or no
-- order has '' there.
CREATE TABLE audit (
    id         INTEGER PRIMARY KEY,
    at         INTEGER NOT NULL,
    actor      TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    item_id    TEXT    NOT NULL DEFAULT '',
    order_id   TEXT    NOT NULL DEFAULT '',
    before     TEXT    NOT NULL DEFAULT '',
    after      TEXT    NOT NULL DEFAULT '',
    request_id TEXT    NOT NULL DEFAULT ''
);

CREATE INDEX audit_item ON audit (item_id, id) WHERE item_id <> '';
CREATE INDEX audit_order ON audit (order_id, id) WHERE order_id <> '';

-- +goose Down
DROP TABLE audit;
DROP TABLE stock_changes;
DROP TABLE releases;
DROP TABLE payments;
DROP INDEX orders_due;
