-- +goose Up

-- The shop's servers that receive events. events are names separated by spaces. The
-- secrets sign messages, so they are stored unhashed; the previous one is valid until
-- old_secret_until. A deleted endpoint has no secrets, and its row is deleted after its
-- deliveries.
CREATE TABLE webhook_endpoints (
    id               TEXT    NOT NULL PRIMARY KEY,
    url              TEXT    NOT NULL,
    description      TEXT    NOT NULL DEFAULT '',
    events           TEXT    NOT NULL,
    enabled          INTEGER NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    disabled_reason  TEXT    NOT NULL DEFAULT '',
    secret           TEXT    NOT NULL,
    old_secret       TEXT    NOT NULL DEFAULT '',
    old_secret_until INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    updated_at       INTEGER NOT NULL,
    deleted_at       INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- Events, inserted in the transaction of the change, and only if an endpoint receives
-- them. body is the message. Numbers are never reused: the relay relies on later events
-- having higher ones.
CREATE TABLE webhook_events (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT    NOT NULL UNIQUE,
    type     TEXT    NOT NULL,
    item_id  TEXT    NOT NULL DEFAULT '',
    order_id TEXT    NOT NULL DEFAULT '',
    body     TEXT    NOT NULL,
    at       INTEGER NOT NULL
);

-- The events of an order, for erasing its buyer.
CREATE INDEX webhook_events_order ON webhook_events (order_id);

-- Each event for each endpoint that receives it.
CREATE TABLE webhook_deliveries (
    endpoint_id  TEXT    NOT NULL,
    event_seq    INTEGER NOT NULL,
    state        TEXT    NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts     INTEGER NOT NULL DEFAULT 0,
    next_at      INTEGER NOT NULL,
    last_at      INTEGER NOT NULL DEFAULT 0,
    last_status  INTEGER NOT NULL DEFAULT 0,
    last_error   TEXT    NOT NULL DEFAULT '',
    delivered_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint_id, event_seq)
) WITHOUT ROWID;

-- For the relay, and for the operator's list of dead deliveries.
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (event_seq) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (endpoint_id, event_seq) WHERE state = 'dead';

-- +goose Down
DROP TABLE webhook_deliveries;
DROP TABLE webhook_events;
DROP TABLE webhook_endpoints;
