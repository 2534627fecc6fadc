-- +goose Up

-- What is due at each endpoint, the longest due first.
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (endpoint_id, next_at) WHERE state = 'pending';

-- +goose Down
DROP INDEX webhook_deliveries_due;
