-- +goose Up

-- Who of the shop is told of what happens. events are names with spaces between
-- them. The secrets sign, so they are kept as they are; the one before the last
-- rotation is good until old_secret_until. A deleted endpoint has lost its
-- secrets, and its row goes once its deliveries are gone.
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

-- What happened, written with the change itself, and only where somebody is to
-- be told. body is what is sent. A number is never used twice: the relay counts
-- on later events having higher ones.
CREATE TABLE webhook_events (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT    NOT NULL UNIQUE,
    type     TEXT    NOT NULL,
    item_id  TEXT    NOT NULL DEFAULT '',
    order_id TEXT    NOT NULL DEFAULT '',
    body     TEXT    NOT NULL,
    at       INTEGER NOT NULL
);

-- What is told of an order, for who has its buyer erased.
CREATE INDEX webhook_events_order ON webhook_events (order_id);

-- Each event for each endpoint that it is owed to.
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

-- What the relay looks for, and what the operator does.
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (event_seq) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (endpoint_id, event_seq) WHERE state = 'dead';

-- +goose Down
DROP TABLE webhook_deliveries;
DROP TABLE webhook_events;
DROP TABLE webhook_endpoints;
