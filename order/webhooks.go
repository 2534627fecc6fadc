package order

import "context"

// Webhooks is the administration of endpoints and their deliveries.
type Webhooks struct {
	Store *Store
	// CheckURL refuses a URL that nothing may be sent to, with a *webhook.URLError.
	CheckURL func(text string) error
}

// CreateEndpoint adds an endpoint, and returns the secret that signs what it is
// sent: nobody can read it later. Errors: *webhook.URLError, ErrEndpointLimit,
// ErrDatabase.
func (w *Webhooks) CreateEndpoint(ctx context.Context, n NewEndpoint, by By) (Endpoint, string, error) {
	if err := w.CheckURL(n.URL); err != nil {
		return Endpoint{}, "", err
	}
	return w.Store.addEndpoint(ctx, n, by)
}

// Endpoints returns all endpoints, the oldest first. Errors: ErrDatabase.
func (w *Webhooks) Endpoints(ctx context.Context) ([]Endpoint, error) { return w.Store.endpoints(ctx) }

// Endpoint returns one endpoint. Errors: ErrEndpointNotFound, ErrDatabase.
func (w *Webhooks) Endpoint(ctx context.Context, id string) (Endpoint, error) {
	return w.Store.endpoint(ctx, id)
}

// ChangeEndpoint changes an endpoint; what is pending goes to its new URL. Errors:
// *webhook.URLError, ErrEndpointNotFound, ErrDatabase.
func (w *Webhooks) ChangeEndpoint(ctx context.Context, id string, c EndpointChange, by By) (Endpoint, error) {
	if c.URL != nil {
		if err := w.CheckURL(*c.URL); err != nil {
			return Endpoint{}, err
		}
	}
	row, err := w.Store.alterEndpoint(ctx, id, "webhook.change", by, c.apply)
	return row.endpoint(), err
}

// DeleteEndpoint ends an endpoint and all that it is owed. Errors:
// ErrEndpointNotFound, ErrDatabase.
func (w *Webhooks) DeleteEndpoint(ctx context.Context, id string, by By) error {
	_, err := w.Store.alterEndpoint(ctx, id, "webhook.delete", by, (*endpointRow).remove)
	return err
}

// RotateSecret gives an endpoint a new secret, and returns it. For SecretOverlap
// the one before signs, too; one from before that does not any more. Errors:
// ErrEndpointNotFound, ErrDatabase.
func (w *Webhooks) RotateSecret(ctx context.Context, id string, by By) (Endpoint, string, error) {
	row, err := w.Store.alterEndpoint(ctx, id, "webhook.rotate", by, (*endpointRow).rotate)
	return row.endpoint(), row.Secret, err
}

// TestEndpoint sends an endpoint an event that means nothing, whatever it has
// asked for, and returns the event's id. Errors: ErrEndpointNotFound,
// ErrEndpointDisabled, ErrDatabase.
func (w *Webhooks) TestEndpoint(ctx context.Context, id string, by By) (string, error) {
	return w.Store.addTest(ctx, id, by)
}

// Deliveries reads a page of what an endpoint was or is owed, the latest event first.
// next is DeliveryFilter.Before of the next page; 0: there is none. A page may be
// shorter than the limit although others follow.
// Errors: ErrEndpointNotFound, ErrTooManyLists, ErrDatabase.
func (w *Webhooks) Deliveries(ctx context.Context, f DeliveryFilter) (list []Delivery, next int64, err error) {
	if _, err := w.Store.endpoint(ctx, f.EndpointID); err != nil {
		return nil, 0, err
	}
	return w.Store.deliveries(ctx, f)
}

// Redeliver delivers an event to an endpoint once more, from the first try on and
// at once, whatever has become of it. Errors: ErrEndpointNotFound,
// ErrEndpointDisabled, ErrDeliveryNotFound, ErrDatabase.
func (w *Webhooks) Redeliver(ctx context.Context, endpointID, eventID string, by By) error {
	return w.Store.renew(ctx, endpointID, eventID, by)
}
