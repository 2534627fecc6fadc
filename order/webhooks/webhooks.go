// Package webhooks manages the endpoints of webhooks and delivers the events of the outbox.
package webhooks

import (
	"context"

	"flashsale/order"
	"flashsale/order/store"
)

// Admin is the administration of endpoints and their deliveries.
type Admin struct {
	Store *store.Store
	// CheckURL refuses forbidden URLs with a *webhook.URLError.
	CheckURL func(text string) error
}

// CreateEndpoint adds an endpoint, and returns the secret that signs its events. The secret
// cannot be read later. Errors: *webhook.URLError, ErrEndpointLimit, database.ErrUnavailable.
func (w *Admin) CreateEndpoint(ctx context.Context, n NewEndpoint, by order.By) (Endpoint, string, error) {
	if err := w.CheckURL(n.URL); err != nil {
		return Endpoint{}, "", err
	}
	return addEndpoint(ctx, w.Store, n, by)
}

// Endpoints returns all endpoints, the oldest first. Errors: database.ErrUnavailable.
func (w *Admin) Endpoints(ctx context.Context) ([]Endpoint, error) { return endpoints(ctx, w.Store) }

// Endpoint returns one endpoint. Errors: ErrEndpointNotFound, database.ErrUnavailable.
func (w *Admin) Endpoint(ctx context.Context, id string) (Endpoint, error) {
	return endpoint(ctx, w.Store, id)
}

// ChangeEndpoint changes an endpoint; pending deliveries go to its new URL. Errors:
// *webhook.URLError, ErrEndpointNotFound, database.ErrUnavailable.
func (w *Admin) ChangeEndpoint(ctx context.Context, id string, c EndpointChange, by order.By) (Endpoint, error) {
	if c.URL != nil {
		if err := w.CheckURL(*c.URL); err != nil {
			return Endpoint{}, err
		}
	}
	row, err := alterEndpoint(ctx, w.Store, id, "webhook.change", by, c.apply)
	return row.endpoint(), err
}

// DeleteEndpoint deletes an endpoint and its deliveries. Errors: ErrEndpointNotFound,
// database.ErrUnavailable.
func (w *Admin) DeleteEndpoint(ctx context.Context, id string, by order.By) error {
	_, err := alterEndpoint(ctx, w.Store, id, "webhook.delete", by, (*endpointRow).remove)
	return err
}

// RotateSecret replaces an endpoint's secret, and returns the new one. For a day
// the previous secret signs, too; older ones do not. Errors: ErrEndpointNotFound,
// database.ErrUnavailable.
func (w *Admin) RotateSecret(ctx context.Context, id string, by order.By) (Endpoint, string, error) {
	row, err := alterEndpoint(ctx, w.Store, id, "webhook.rotate", by, (*endpointRow).rotate)
	return row.endpoint(), row.Secret, err
}

// TestEndpoint sends a test event to an endpoint, regardless of its subscriptions, and
// returns the event's id. Errors: ErrEndpointNotFound, ErrEndpointDisabled, database.ErrUnavailable.
func (w *Admin) TestEndpoint(ctx context.Context, id string, by order.By) (string, error) {
	return addTest(ctx, w.Store, id, by)
}

// Deliveries reads a page of an endpoint's deliveries, the latest event first. next is the
// DeliveryFilter.Before of the next page; 0: there is none. A page may be shorter than the
// limit although others follow. Errors: ErrEndpointNotFound, ErrTooManyLists, database.ErrUnavailable.
func (w *Admin) Deliveries(ctx context.Context, f DeliveryFilter) (list []Delivery, next int64, err error) {
	if _, err := endpoint(ctx, w.Store, f.EndpointID); err != nil {
		return nil, 0, err
	}
	return deliveries(ctx, w.Store, f)
}

// Redeliver delivers an event to an endpoint again, in any state of the delivery, at once
// and with all retries. Errors: ErrEndpointNotFound, ErrEndpointDisabled,
// ErrDeliveryNotFound, database.ErrUnavailable.
func (w *Admin) Redeliver(ctx context.Context, endpointID, eventID string, by order.By) error {
	return redeliver(ctx, w.Store, endpointID, eventID, by)
}
