-- +goose Up

-- The orders that expire unless they are paid, by their deadline, for the sweeper. It
-- omits orders that require no payment or are closed.
CREATE INDEX orders_due ON orders (expires_at, id) WHERE status = 'confirmed' AND expires_at > 0;

-- Amounts that the shop's backend has reported, each reference once. An amount that did
-- not pay its order must be refunded: 'late' arrived after the order was closed or its
-- window was over, 'duplicate' after another reference had paid it.
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

-- At most one payment pays an order, even if the program has a bug.
CREATE UNIQUE INDEX payments_paid ON payments (order_id) WHERE outcome = 'paid';

-- Units of closed orders that have not been returned in Redis yet: inserted in the
-- transaction that closes the order, deleted once the units are returned.
CREATE TABLE releases (
    order_id        TEXT    NOT NULL PRIMARY KEY,
    item_id         TEXT    NOT NULL,
    user_id         TEXT    NOT NULL,
    idempotency_key TEXT    NOT NULL,
    quantity        INTEGER NOT NULL CHECK (quantity > 0),
    created_at      INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX releases_item ON releases (item_id, order_id);

-- The ledger of items.total: initial plus the quantities is total.
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

-- The audit log. before and after are JSON; item_id and order_id are '' for changes
-- that concern no item or no order.
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
