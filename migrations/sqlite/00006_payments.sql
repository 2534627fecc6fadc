-- +goose Up

-- A paid order can be refunded. Only a CHECK of orders changes, and every row
-- satisfies the new one, so the text of the schema is edited in place: rebuilding
-- the table would copy every order while the shop is closed. SQLite documents this
-- procedure for changes that do not touch the stored rows.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''expired'', ''rejected'')', '''expired'', ''rejected'', ''refunded'')')
WHERE type = 'table' AND name = 'orders';
PRAGMA writable_schema = RESET;

-- 1: the units of this refunded order went back into the stock. A refunded order
-- with 0 keeps its units: they count as sold, and for the buyer's limit.
ALTER TABLE orders ADD COLUMN restocked INTEGER NOT NULL DEFAULT 0;

-- Every amount that the shop's backend reported, each reference once. received_as
-- is what the amount was when it arrived: 'accepted' paid its order, 'late' arrived
-- after the order was closed or its window was over, 'duplicate' arrived when another
-- reference had paid the order, 'mismatch' was not the order's price. outcome is
-- the same until the money is refunded. An id is higher than every earlier one.
DROP INDEX payments_order;
DROP INDEX payments_refund;
DROP INDEX payments_paid;
ALTER TABLE payments RENAME TO payments_before;

CREATE TABLE payments (
    id           INTEGER PRIMARY KEY,
    order_id     TEXT    NOT NULL,
    reference    TEXT    NOT NULL UNIQUE CHECK (length(reference) BETWEEN 1 AND 255),
    amount_minor INTEGER NOT NULL CHECK (amount_minor >= 0),
    currency     TEXT    NOT NULL,
    received_as  TEXT    NOT NULL CHECK (received_as IN ('accepted', 'late', 'duplicate', 'mismatch')),
    outcome      TEXT    NOT NULL CHECK (outcome IN (received_as, 'refunded')),
    received_at  INTEGER NOT NULL,
    refunded_at  INTEGER NOT NULL DEFAULT 0,
    CHECK ((outcome = 'refunded') = (refunded_at > 0))
);

INSERT INTO payments (order_id, reference, amount_minor, currency, received_as, outcome, received_at)
SELECT order_id, reference, amount_minor, currency, replace(outcome, 'paid', 'accepted'), replace(outcome, 'paid', 'accepted'), received_at
FROM payments_before ORDER BY received_at, reference;

DROP TABLE payments_before;

CREATE INDEX payments_order ON payments (order_id, id);

-- The operator's lists, newest first: by outcome, and what needs a refund. The
-- latter has the outcome beside the id so that counting it reads no rows.
CREATE INDEX payments_outcome ON payments (outcome, id);
CREATE INDEX payments_refund ON payments (id, outcome) WHERE outcome IN ('late', 'duplicate', 'mismatch');

-- At most one payment pays an order, even if the program has a bug.
CREATE UNIQUE INDEX payments_accepted ON payments (order_id) WHERE received_as = 'accepted';

-- +goose Down

-- The older schema has neither refunds nor mismatches: a refunded order becomes
-- what its units say, and an amount that differed is to be refunded as 'late'.
UPDATE orders SET status = CASE restocked WHEN 1 THEN 'cancelled' ELSE 'paid' END,
    reason = CASE restocked WHEN 1 THEN 'admin' ELSE '' END, closed_at = CASE restocked WHEN 1 THEN closed_at ELSE 0 END
WHERE status = 'refunded';
ALTER TABLE orders DROP COLUMN restocked;
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, '''rejected'', ''refunded'')', '''rejected'')')
WHERE type = 'table' AND name = 'orders';
PRAGMA writable_schema = RESET;

DROP INDEX payments_order;
DROP INDEX payments_outcome;
DROP INDEX payments_refund;
DROP INDEX payments_accepted;
ALTER TABLE payments RENAME TO payments_after;

CREATE TABLE payments (
    reference    TEXT    NOT NULL PRIMARY KEY CHECK (length(reference) BETWEEN 1 AND 255),
    order_id     TEXT    NOT NULL,
    amount_minor INTEGER NOT NULL CHECK (amount_minor >= 0),
    currency     TEXT    NOT NULL,
    outcome      TEXT    NOT NULL CHECK (outcome IN ('paid', 'late', 'duplicate')),
    received_at  INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO payments (reference, order_id, amount_minor, currency, outcome, received_at)
SELECT reference, order_id, amount_minor, currency,
    CASE received_as WHEN 'accepted' THEN 'paid' WHEN 'mismatch' THEN 'late' ELSE received_as END, received_at
FROM payments_after;

DROP TABLE payments_after;

CREATE INDEX payments_order ON payments (order_id);
CREATE INDEX payments_refund ON payments (received_at) WHERE outcome <> 'paid';
CREATE UNIQUE INDEX payments_paid ON payments (order_id) WHERE outcome = 'paid';
