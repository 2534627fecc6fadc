-- +goose Up

-- The state of the service itself: the epoch of the state in Redis, and the number of
-- partitions.
CREATE TABLE meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- The first epoch is a time, so that Redis state of an older database of the same shop
-- is not mistaken for this one's.
INSERT INTO meta (key, value) VALUES ('epoch', CAST(strftime('%s', 'now') AS TEXT));

-- Names this database and every copy and backup of it. Redis records it, and revisions by it.
INSERT INTO meta (key, value) VALUES ('lineage', lower(hex(randomblob(16))));

-- Times are Unix milliseconds UTC throughout; 0 means "none".
CREATE TABLE items (
    id                     TEXT    NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    name                   TEXT    NOT NULL,
    description            TEXT    NOT NULL DEFAULT '',
    price_minor            INTEGER NOT NULL CHECK (price_minor >= 0),
    currency               TEXT    NOT NULL CHECK (length(currency) = 3),
    initial                INTEGER NOT NULL CHECK (initial >= 0),
    total                  INTEGER NOT NULL CHECK (total >= 0),
    sold                   INTEGER NOT NULL DEFAULT 0,
    per_user_limit         INTEGER NOT NULL CHECK (per_user_limit >= 1),
    opens_at               INTEGER NOT NULL,
    closes_at              INTEGER NOT NULL DEFAULT 0 CHECK (closes_at = 0 OR closes_at > opens_at),
    payment_window_seconds INTEGER NOT NULL DEFAULT 0 CHECK (payment_window_seconds >= 0),
    control                TEXT    NOT NULL DEFAULT 'open' CHECK (control IN ('open', 'paused', 'closed')),
    version                INTEGER NOT NULL DEFAULT 1,
    created_at             INTEGER NOT NULL,
    updated_at             INTEGER NOT NULL,
    -- The last line of defence against overselling, whatever the code above does.
    CHECK (sold BETWEEN 0 AND total)
) WITHOUT ROWID;

-- There is no foreign key to items: the transaction that inserts an order has just
-- updated its item's row, so a second look-up per order would be wasted.
CREATE TABLE orders (
    id                TEXT    NOT NULL PRIMARY KEY,
    item_id           TEXT    NOT NULL,
    user_id           TEXT    NOT NULL,
    quantity          INTEGER NOT NULL CHECK (quantity > 0),
    unit_price_minor  INTEGER NOT NULL CHECK (unit_price_minor >= 0),
    currency          TEXT    NOT NULL,
    status            TEXT    NOT NULL CHECK (status IN ('confirmed', 'paid', 'cancelled', 'expired', 'rejected')),
    reason            TEXT    NOT NULL DEFAULT '',
    idempotency_key   TEXT    NOT NULL,
    created_at        INTEGER NOT NULL,
    confirmed_at      INTEGER NOT NULL DEFAULT 0,
    expires_at        INTEGER NOT NULL DEFAULT 0,
    paid_at           INTEGER NOT NULL DEFAULT 0,
    closed_at         INTEGER NOT NULL DEFAULT 0,
    payment_reference TEXT    NOT NULL DEFAULT ''
) WITHOUT ROWID;

-- One order per buyer, item and idempotency key. The buyer comes first, so that the
-- index also serves the buyer's list of orders.
CREATE UNIQUE INDEX orders_idempotency ON orders (user_id, item_id, idempotency_key);

-- An item's orders, oldest first: rebuilding a sale, and the operator's list.
CREATE INDEX orders_item ON orders (item_id, id);

-- The units of each item that each buyer holds, so that a statement can check the limit
-- without counting orders.
CREATE TABLE buyers (
    item_id  TEXT    NOT NULL,
    user_id  TEXT    NOT NULL,
    quantity INTEGER NOT NULL CHECK (quantity >= 0),
    PRIMARY KEY (item_id, user_id)
) WITHOUT ROWID;

-- +goose Down
DROP TABLE buyers;
DROP TABLE orders;
DROP TABLE items;
DROP TABLE meta;
