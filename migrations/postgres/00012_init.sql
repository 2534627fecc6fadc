-- +goose Up

-- The whole schema as SQLite has it after its steps 1 to 12. Every later step has the same
-- number in both folders.
--
-- Text is COLLATE "C": it is compared byte by byte, as in SQLite and in Go. Flags are SMALLINT,
-- 0 or 1, so that statements compare them as they do in SQLite.

-- The functions of SQLite that the statements of this service use. The planner replaces each
-- call by the function's body. The parameters have names because Postgres prints an unnamed one
-- of a function that returns a table in a way that it cannot read, as in the output of pg_dump.

-- The elements of a JSON array, numbered from 0; an element that is an array is its JSON text.
-- The planner expects 10 elements of an array that it does not know, but 100 of a JSON value,
-- for which it would rather read all of a table with tens of thousands of rows.
-- +goose StatementBegin
CREATE FUNCTION json_each(list TEXT) RETURNS TABLE (key BIGINT, value TEXT) LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 10
BEGIN ATOMIC
    SELECT e.ordinality - 1, e.value
    FROM unnest(ARRAY(SELECT json_array_elements_text(CAST(list AS JSON)))) WITH ORDINALITY e (value, ordinality);
END;
-- +goose StatementEnd

-- What is at a path such as $[0] or $.name in a JSON value, as text; '' has nothing anywhere.
CREATE FUNCTION json_extract(body TEXT, path TEXT) RETURNS TEXT LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CAST(NULLIF(body, '') AS JSON) #>> string_to_array(ltrim(replace(translate(path, '$]', ''), '[', '.'), '.'), '.');

-- The position of the second text in the first one, from 1; 0: it is not in it.
CREATE FUNCTION instr(body TEXT, part TEXT) RETURNS INTEGER LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN strpos(body, part);

-- The greater number. SQLite returns NULL if one of them is NULL; no statement passes NULL.
CREATE FUNCTION max(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN GREATEST(a, b);

-- The smaller number, as for max.
CREATE FUNCTION min(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN LEAST(a, b);

-- The state of the service itself: the epoch of the state in Redis, and the number of
-- partitions.
CREATE TABLE meta (
    key   TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    value TEXT COLLATE "C" NOT NULL
);

-- The first epoch is a time, so that Redis state of an older database of the same shop
-- is not mistaken for this one's.
INSERT INTO meta (key, value) VALUES ('epoch', CAST(CAST(floor(extract(epoch FROM now())) AS BIGINT) AS TEXT));

-- Names this database and every copy and backup of it. Redis records it, and revisions by it.
INSERT INTO meta (key, value) VALUES ('lineage', CAST(gen_random_uuid() AS TEXT));

-- Times are Unix milliseconds UTC throughout; 0 means "none".
CREATE TABLE items (
    id                     TEXT COLLATE "C" NOT NULL PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    name                   TEXT COLLATE "C" NOT NULL,
    description            TEXT COLLATE "C" NOT NULL DEFAULT '',
    price_minor            BIGINT   NOT NULL CHECK (price_minor >= 0),
    currency               TEXT COLLATE "C" NOT NULL CHECK (length(currency) = 3),
    initial                BIGINT   NOT NULL CHECK (initial >= 0),
    total                  BIGINT   NOT NULL CHECK (total >= 0),
    sold                   BIGINT   NOT NULL DEFAULT 0,
    per_user_limit         BIGINT   NOT NULL CHECK (per_user_limit >= 1),
    opens_at               BIGINT   NOT NULL,
    closes_at              BIGINT   NOT NULL DEFAULT 0 CHECK (closes_at = 0 OR closes_at > opens_at),
    payment_window_seconds BIGINT   NOT NULL DEFAULT 0 CHECK (payment_window_seconds >= 0),
    control                TEXT COLLATE "C" NOT NULL DEFAULT 'open' CHECK (control IN ('open', 'paused', 'closed')),
    version                BIGINT   NOT NULL DEFAULT 1,
    created_at             BIGINT   NOT NULL,
    updated_at             BIGINT   NOT NULL,
    -- The progress of an item's live sale: the highest number of a script whose orders are
    -- rows or whose returned units are recorded. A sale in Redis with a lower number has
    -- been restored from older data, and is rebuilt.
    sequence               BIGINT   NOT NULL DEFAULT 0,
    -- Increased by 1 in every transaction that changes the item, its orders or its
    -- payments. Redis keeps the highest one that was committed: a database with a lower
    -- one was restored from a backup.
    revision               BIGINT   NOT NULL DEFAULT 0,
    -- The revision recorded in Redis when this database was found to be older; 0: it was
    -- not. It stays until an operator has decided, no matter what is committed meanwhile. A
    -- newer database that replaces this one does not have it.
    behind                 BIGINT   NOT NULL DEFAULT 0,
    -- The units of an item's orders that are confirmed and await payment: the held part of
    -- sold, without reading the orders. Triggers maintain it, so that it includes every
    -- statement that changes an order, in the same transaction.
    awaiting               BIGINT   NOT NULL DEFAULT 0,
    -- 1: the sale has ended, and Redis was found to have none of its keys. Every change of
    -- the item resets it to 0.
    freed                  SMALLINT NOT NULL DEFAULT 0,
    -- The path of the item's image on the shop's own address; '': none.
    image_url              TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- The last line of defence against overselling, whatever the code above does.
    CHECK (sold BETWEEN 0 AND total)
) WITH (
    -- Every batch of orders updates sold, sequence, revision and awaiting, which no index may
    -- contain: then a new version of the row in the same page changes no index, and the next
    -- access to the page removes the old versions. Half of each page is kept for them.
    fillfactor = 50,
    -- A snapshot that is read for minutes, as by pg_dump, keeps thousands of versions of a row
    -- per second. The table is small, so it is vacuumed without pauses as soon as that is worth it.
    autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0,
    -- Giving free pages back to the file system would stop all sales meanwhile.
    vacuum_truncate = off
);

CREATE INDEX items_behind ON items (id) WHERE behind > 0;

-- The sales that have an end and are still to be removed from Redis, by the end of the
-- last payment window. No column in it changes while a sale runs.
CREATE INDEX items_freeable ON items ((CASE control WHEN 'closed' THEN updated_at ELSE closes_at END + payment_window_seconds * 1000))
    WHERE freed = 0 AND (control = 'closed' OR closes_at > 0);

-- There is no foreign key to items: the transaction that inserts an order has just
-- updated its item's row, so a second look-up per order would be wasted. The pages have no
-- free space for updates: each one changes the status, and so the indexes.
CREATE TABLE orders (
    id                TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    item_id           TEXT COLLATE "C" NOT NULL,
    user_id           TEXT COLLATE "C" NOT NULL,
    quantity          BIGINT   NOT NULL CHECK (quantity > 0),
    unit_price_minor  BIGINT   NOT NULL CHECK (unit_price_minor >= 0),
    currency          TEXT COLLATE "C" NOT NULL,
    status            TEXT COLLATE "C" NOT NULL CHECK (status IN ('confirmed', 'paid', 'cancelled', 'expired', 'rejected', 'refunded')),
    reason            TEXT COLLATE "C" NOT NULL DEFAULT '',
    idempotency_key   TEXT COLLATE "C" NOT NULL,
    created_at        BIGINT   NOT NULL,
    confirmed_at      BIGINT   NOT NULL DEFAULT 0,
    expires_at        BIGINT   NOT NULL DEFAULT 0,
    paid_at           BIGINT   NOT NULL DEFAULT 0,
    closed_at         BIGINT   NOT NULL DEFAULT 0,
    payment_reference TEXT COLLATE "C" NOT NULL DEFAULT '',
    -- 1: the units of this refunded order went back into the stock. A refunded order
    -- with 0 keeps its units: they count as sold, and for the buyer's limit.
    restocked         SMALLINT NOT NULL DEFAULT 0
);

-- One order per item, buyer and idempotency key. The item leads: with the buyer first,
-- the orders of a sale are spread over the whole index.
CREATE UNIQUE INDEX orders_idempotency ON orders (item_id, user_id, idempotency_key);

-- An item's orders, oldest first: rebuilding a sale, and the operator's list.
CREATE INDEX orders_item ON orders (item_id, id);

-- A buyer's orders by period. An id begins with its time: these six digits are 4 hours
-- and 40 minutes. A buyer's list looks into one period after the other.
CREATE INDEX orders_buyer ON orders (substr(id, 1, 6), user_id);

-- The orders that expire unless they are paid, by their deadline. It omits orders that
-- require no payment or are closed.
CREATE INDEX orders_due ON orders (expires_at, id) WHERE status = 'confirmed' AND expires_at > 0;

-- The lists of orders that ended without money staying, by state, newest first. Most
-- orders of a sale never reach one of these states, and adding an order to the table
-- costs nothing here.
CREATE INDEX orders_ended ON orders (status, id) WHERE status IN ('rejected', 'cancelled', 'expired', 'refunded');
CREATE INDEX orders_item_ended ON orders (item_id, status, id) WHERE status IN ('rejected', 'cancelled', 'expired', 'refunded');

-- The triggers run once per statement, and update each item once, however many of its orders
-- the statement changed. The items are updated in the order of their ids, which is the order
-- in which every transaction locks them.
-- +goose StatementBegin
CREATE FUNCTION orders_awaiting_new() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    due RECORD;
BEGIN
    FOR due IN
        SELECT n.item_id, CAST(SUM(n.quantity) AS BIGINT) AS units FROM new_orders n
        WHERE n.status = 'confirmed' AND n.expires_at > 0
        GROUP BY n.item_id ORDER BY n.item_id
    LOOP
        UPDATE items SET awaiting = awaiting + due.units WHERE id = due.item_id;
    END LOOP;
    RETURN NULL;
END;
$$;
-- +goose StatementEnd

CREATE TRIGGER orders_awaiting_new AFTER INSERT ON orders
    REFERENCING NEW TABLE AS new_orders
    FOR EACH STATEMENT EXECUTE FUNCTION orders_awaiting_new();

-- +goose StatementBegin
CREATE FUNCTION orders_awaiting_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    due RECORD;
BEGIN
    FOR due IN
        SELECT c.item_id, CAST(SUM(c.units) AS BIGINT) AS units FROM (
            SELECT n.item_id, n.quantity AS units FROM new_orders n WHERE n.status = 'confirmed' AND n.expires_at > 0
            UNION ALL
            SELECT o.item_id, -o.quantity FROM old_orders o WHERE o.status = 'confirmed' AND o.expires_at > 0
        ) c
        GROUP BY c.item_id HAVING SUM(c.units) <> 0 ORDER BY c.item_id
    LOOP
        UPDATE items SET awaiting = awaiting + due.units WHERE id = due.item_id;
    END LOOP;
    RETURN NULL;
END;
$$;
-- +goose StatementEnd

CREATE TRIGGER orders_awaiting_changed AFTER UPDATE ON orders
    REFERENCING OLD TABLE AS old_orders NEW TABLE AS new_orders
    FOR EACH STATEMENT EXECUTE FUNCTION orders_awaiting_changed();

-- The units of each item that each buyer holds, so that a statement can check the limit
-- without counting orders. A tenth of each page is kept for buyers who order again or whose
-- orders are cancelled.
CREATE TABLE buyers (
    item_id  TEXT COLLATE "C" NOT NULL,
    user_id  TEXT COLLATE "C" NOT NULL,
    quantity BIGINT NOT NULL CHECK (quantity >= 0),
    PRIMARY KEY (item_id, user_id)
) WITH (fillfactor = 90);

-- Every amount that the shop's backend reported, each reference once. received_as
-- is what the amount was when it arrived: 'accepted' paid its order, 'late' arrived
-- after the order was closed or its window was over, 'duplicate' arrived when another
-- reference had paid the order, 'mismatch' was not the order's price. outcome is
-- the same until the money is refunded. An id is higher than every earlier one.
CREATE TABLE payments (
    id           BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    order_id     TEXT COLLATE "C" NOT NULL,
    reference    TEXT COLLATE "C" NOT NULL UNIQUE CHECK (length(reference) BETWEEN 1 AND 255),
    amount_minor BIGINT NOT NULL CHECK (amount_minor >= 0),
    currency     TEXT COLLATE "C" NOT NULL,
    received_as  TEXT COLLATE "C" NOT NULL CHECK (received_as IN ('accepted', 'late', 'duplicate', 'mismatch')),
    outcome      TEXT COLLATE "C" NOT NULL CHECK (outcome IN (received_as, 'refunded')),
    received_at  BIGINT NOT NULL,
    refunded_at  BIGINT NOT NULL DEFAULT 0,
    CHECK ((outcome = 'refunded') = (refunded_at > 0))
);

CREATE INDEX payments_order ON payments (order_id, id);

-- The operator's lists, newest first: by outcome, and what needs a refund. The
-- latter has the outcome beside the id so that counting it reads no rows.
CREATE INDEX payments_outcome ON payments (outcome, id);
CREATE INDEX payments_refund ON payments (id, outcome) WHERE outcome IN ('late', 'duplicate', 'mismatch');

-- At most one payment pays an order, even if the program has a bug.
CREATE UNIQUE INDEX payments_accepted ON payments (order_id) WHERE received_as = 'accepted';

-- Units of closed orders that have not been returned in Redis yet: inserted in the
-- transaction that closes the order, deleted once the units are returned.
CREATE TABLE releases (
    order_id        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    item_id         TEXT COLLATE "C" NOT NULL,
    user_id         TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    quantity        BIGINT NOT NULL CHECK (quantity > 0),
    created_at      BIGINT NOT NULL
);

CREATE INDEX releases_item ON releases (item_id, order_id);

-- The ledger of items.total: initial plus the quantities is total.
CREATE TABLE stock_changes (
    id              BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    item_id         TEXT COLLATE "C" NOT NULL,
    quantity        BIGINT NOT NULL CHECK (quantity <> 0),
    reason          TEXT COLLATE "C" NOT NULL,
    actor           TEXT COLLATE "C" NOT NULL,
    idempotency_key TEXT COLLATE "C" NOT NULL,
    total_after     BIGINT NOT NULL CHECK (total_after >= 0),
    at              BIGINT NOT NULL,
    UNIQUE (item_id, idempotency_key)
);

-- The audit log. before and after are JSON; item_id and order_id are '' for changes
-- that concern no item or no order.
CREATE TABLE audit (
    id         BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at         BIGINT NOT NULL,
    actor      TEXT COLLATE "C" NOT NULL,
    action     TEXT COLLATE "C" NOT NULL,
    item_id    TEXT COLLATE "C" NOT NULL DEFAULT '',
    order_id   TEXT COLLATE "C" NOT NULL DEFAULT '',
    before     TEXT COLLATE "C" NOT NULL DEFAULT '',
    after      TEXT COLLATE "C" NOT NULL DEFAULT '',
    request_id TEXT COLLATE "C" NOT NULL DEFAULT ''
);

CREATE INDEX audit_item ON audit (item_id, id) WHERE item_id <> '';
CREATE INDEX audit_order ON audit (order_id, id) WHERE order_id <> '';

-- The shop's servers that receive events. events are names separated by spaces. The
-- secrets sign messages, so they are stored unhashed; the previous one is valid until
-- old_secret_until. A deleted endpoint has no secrets, and its row is deleted after its
-- deliveries.
CREATE TABLE webhook_endpoints (
    id               TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    url              TEXT COLLATE "C" NOT NULL,
    description      TEXT COLLATE "C" NOT NULL DEFAULT '',
    events           TEXT COLLATE "C" NOT NULL,
    enabled          SMALLINT NOT NULL DEFAULT 1 CHECK (enabled IN (0, 1)),
    disabled_reason  TEXT COLLATE "C" NOT NULL DEFAULT '',
    secret           TEXT COLLATE "C" NOT NULL,
    old_secret       TEXT COLLATE "C" NOT NULL DEFAULT '',
    old_secret_until BIGINT   NOT NULL DEFAULT 0,
    created_at       BIGINT   NOT NULL,
    updated_at       BIGINT   NOT NULL,
    deleted_at       BIGINT   NOT NULL DEFAULT 0
);

-- Events, inserted in the transaction of the change, and only if an endpoint receives
-- them. body is the message. Numbers are never reused: the relay relies on later events
-- having higher ones.
CREATE TABLE webhook_events (
    seq      BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    id       TEXT COLLATE "C" NOT NULL UNIQUE,
    type     TEXT COLLATE "C" NOT NULL,
    item_id  TEXT COLLATE "C" NOT NULL DEFAULT '',
    order_id TEXT COLLATE "C" NOT NULL DEFAULT '',
    body     TEXT COLLATE "C" NOT NULL,
    at       BIGINT NOT NULL
);

-- The events of an order, for erasing its buyer.
CREATE INDEX webhook_events_order ON webhook_events (order_id);

-- Each event for each endpoint that receives it.
CREATE TABLE webhook_deliveries (
    endpoint_id  TEXT COLLATE "C" NOT NULL,
    event_seq    BIGINT NOT NULL,
    state        TEXT COLLATE "C" NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts     BIGINT NOT NULL DEFAULT 0,
    next_at      BIGINT NOT NULL,
    last_at      BIGINT NOT NULL DEFAULT 0,
    last_status  BIGINT NOT NULL DEFAULT 0,
    last_error   TEXT COLLATE "C" NOT NULL DEFAULT '',
    delivered_at BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (endpoint_id, event_seq)
);

-- For the relay, and for the operator's list of dead deliveries.
CREATE INDEX webhook_deliveries_pending ON webhook_deliveries (event_seq) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_dead ON webhook_deliveries (endpoint_id, event_seq) WHERE state = 'dead';

-- What is due at each endpoint, the longest due first.
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, next_at) WHERE state = 'pending';

-- +goose Down
DROP TABLE webhook_deliveries;
DROP TABLE webhook_events;
DROP TABLE webhook_endpoints;
DROP TABLE audit;
DROP TABLE stock_changes;
DROP TABLE releases;
DROP TABLE payments;
DROP TABLE buyers;
DROP TABLE orders;
DROP FUNCTION orders_awaiting_changed();
DROP FUNCTION orders_awaiting_new();
DROP TABLE items;
DROP TABLE meta;
DROP FUNCTION min(BIGINT, BIGINT);
DROP FUNCTION max(BIGINT, BIGINT);
DROP FUNCTION instr(TEXT, TEXT);
DROP FUNCTION json_extract(TEXT, TEXT);
DROP FUNCTION json_each(TEXT);
