package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm"

	"flashsale/order"
	"flashsale/order/store"
	"flashsale/order/store/database"
	"flashsale/order/timeouts"
	"flashsale/webhook"
)

// The errors of the administration of webhooks.
var (
	// ErrEndpointNotFound means that no such endpoint exists.
	ErrEndpointNotFound = errors.New("order: webhook endpoint not found")
	// ErrEndpointLimit means that there are 50 endpoints already.
	ErrEndpointLimit = errors.New("order: too many webhook endpoints")
	// ErrEndpointDisabled means that the endpoint is disabled.
	ErrEndpointDisabled = errors.New("order: webhook endpoint disabled")
	// ErrDeliveryNotFound means that the endpoint never got such an event, or that the event
	// was deleted by now.
	ErrDeliveryNotFound = errors.New("order: webhook delivery not found")
)

const (
	// maxEndpoints bounds the number of endpoints.
	maxEndpoints = 50
	// secretOverlap is how long after a rotation the previous secret signs, too.
	secretOverlap = 24 * time.Hour
	// disabledGone is the reason for disabling an endpoint whose server answered 410.
	disabledGone = "gone"
)

// Endpoint is one of the shop's servers, which receives events. It does not contain the secret,
// which is shown once, when it is created.
type Endpoint struct {
	ID          string
	URL         string
	Description string
	Events      []order.EventType // in the order of EventTypes
	Enabled     bool
	// DisabledReason is "gone" if a server's answer disabled the endpoint, and empty
	// otherwise.
	DisabledReason string
	CreatedAt      time.Time
	UpdatedAt      time.Time
	// OldSecretUntil is how long the previous secret signs, too; zero or past: no longer.
	OldSecretUntil time.Time
}

// NewEndpoint is an admin's request to add an endpoint.
type NewEndpoint struct {
	URL         string
	Description string
	Events      []order.EventType // at least one of EventTypes, without duplicates
}

// EndpointChange is an admin's change of an endpoint; nil fields stay unchanged.
type EndpointChange struct {
	URL         *string
	Description *string
	Events      []order.EventType
	Enabled     *bool
}

// endpointRow is a row of the table webhook_endpoints.
type endpointRow struct {
	ID             string `gorm:"primaryKey"`
	URL            string
	Description    string
	Events         string
	Enabled        bool
	DisabledReason string
	Secret         string
	OldSecret      string
	OldSecretUntil int64
	CreatedAt      int64 `gorm:"autoCreateTime:false"`
	UpdatedAt      int64 `gorm:"autoUpdateTime:false"`
	DeletedAt      int64
}

// TableName returns the name of the table to gorm.
func (endpointRow) TableName() string { return "webhook_endpoints" }

func (r *endpointRow) endpoint() Endpoint {
	e := Endpoint{
		ID: r.ID, URL: r.URL, Description: r.Description, Enabled: r.Enabled, DisabledReason: r.DisabledReason,
		CreatedAt: order.FromMillis(r.CreatedAt), UpdatedAt: order.FromMillis(r.UpdatedAt), OldSecretUntil: order.FromMillis(r.OldSecretUntil),
	}
	for _, kind := range strings.Fields(r.Events) {
		e.Events = append(e.Events, order.EventType(kind))
	}
	return e
}

// joinEvents returns a list of events as the table stores it, in the order of EventTypes.
func joinEvents(events []order.EventType) string {
	var names []string
	for _, kind := range order.EventTypes {
		if slices.Contains(events, kind) {
			names = append(names, string(kind))
		}
	}
	return strings.Join(names, " ")
}

// addEndpoint adds an endpoint, and returns its secret.
func addEndpoint(ctx context.Context, s *store.Store, n NewEndpoint, by order.By) (Endpoint, string, error) {
	id, err := store.NewID(store.EndpointPrefix)
	if err != nil {
		return Endpoint{}, "", err
	}
	var row endpointRow
	err = s.ChangeWithGORM(ctx, "add webhook endpoint", func(tx *gorm.DB, now int64) error {
		var count int64
		if err := tx.Model(&endpointRow{}).Where("deleted_at = 0").Count(&count).Error; err != nil {
			return err
		}
		if count >= maxEndpoints {
			return ErrEndpointLimit
		}
		row = endpointRow{
			ID: id, URL: n.URL, Description: n.Description, Events: joinEvents(n.Events), Enabled: true,
			Secret: webhook.NewSecret(), CreatedAt: now, UpdatedAt: now,
		}
		if err := tx.Create(&row).Error; err != nil {
			return err
		}
		return auditEndpoint(tx, now, by, "webhook.create", nil, &row)
	})
	if err != nil {
		return Endpoint{}, "", err
	}
	return row.endpoint(), row.Secret, nil
}

// endpoints reads all endpoints, the oldest first.
func endpoints(ctx context.Context, s *store.Store) ([]Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	var rows []endpointRow
	if err := s.Reader().WithContext(ctx).Where("deleted_at = 0").Order("id").Find(&rows).Error; err != nil {
		return nil, database.Wrap("read webhook endpoints", err)
	}
	list := make([]Endpoint, len(rows))
	for i := range rows {
		list[i] = rows[i].endpoint()
	}
	return list, nil
}

// endpoint reads one endpoint. Errors: ErrEndpointNotFound.
func endpoint(ctx context.Context, s *store.Store, id string) (Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, timeouts.Read)
	defer cancel()
	row, err := endpointOf(s.Reader().WithContext(ctx), id)
	if err != nil {
		return Endpoint{}, database.Wrap("read webhook endpoint "+id, err)
	}
	return row.endpoint(), nil
}

func endpointOf(db *gorm.DB, id string) (endpointRow, error) {
	var rows []endpointRow
	if err := db.Where("id = ? AND deleted_at = 0", id).Limit(1).Find(&rows).Error; err != nil {
		return endpointRow{}, err
	}
	if len(rows) == 0 {
		return endpointRow{}, ErrEndpointNotFound
	}
	return rows[0], nil
}

// alterEndpoint changes an endpoint's row and writes the audit entry, in one transaction.
func alterEndpoint(ctx context.Context, s *store.Store, id, action string, by order.By, fn func(r *endpointRow, now int64)) (endpointRow, error) {
	var row endpointRow
	err := s.ChangeWithGORM(ctx, action+" "+id, func(tx *gorm.DB, now int64) error {
		before, err := endpointOf(tx, id)
		if err != nil {
			return err
		}
		row = before
		fn(&row, now)
		row.UpdatedAt = now
		if err := tx.Save(&row).Error; err != nil {
			return err
		}
		return auditEndpoint(tx, now, by, action, &before, &row)
	})
	return row, err
}

// apply applies an admin's change to a row. Enabling an endpoint clears the reason why it
// was disabled.
func (c *EndpointChange) apply(r *endpointRow, _ int64) {
	if c.URL != nil {
		r.URL = *c.URL
	}
	if c.Description != nil {
		r.Description = *c.Description
	}
	if c.Events != nil {
		r.Events = joinEvents(c.Events)
	}
	if c.Enabled != nil {
		r.Enabled, r.DisabledReason = *c.Enabled, ""
	}
}

// remove marks an endpoint as deleted. Its deliveries are deleted in the background,
// because there may be any number of them.
func (r *endpointRow) remove(now int64) {
	r.Enabled, r.DeletedAt = false, now
	r.Secret, r.OldSecret, r.OldSecretUntil = "", "", 0
}

// rotate sets a new secret; the previous one still signs for secretOverlap.
func (r *endpointRow) rotate(now int64) {
	r.OldSecret, r.OldSecretUntil = r.Secret, now+secretOverlap.Milliseconds()
	r.Secret = webhook.NewSecret()
}

// auditEndpoint records a change of an endpoint. It never contains a secret.
func auditEndpoint(tx *gorm.DB, now int64, by order.By, action string, before, after *endpointRow) error {
	was, err := auditText(before)
	if err != nil {
		return err
	}
	is, err := auditText(after)
	if err != nil {
		return err
	}
	return auditWebhook(tx, &store.AuditRow{At: now, Actor: by.Actor, Action: action, Before: was, After: is, RequestID: by.RequestID})
}

// auditText is an endpoint as the audit stores it; empty for none.
func auditText(r *endpointRow) (string, error) {
	if r == nil || r.DeletedAt != 0 {
		return "", nil
	}
	b, err := json.Marshal(struct {
		ID             string      `json:"id"`
		URL            string      `json:"url"`
		Description    string      `json:"description"`
		Events         []string    `json:"events"`
		Enabled        bool        `json:"enabled"`
		DisabledReason string      `json:"disabled_reason,omitempty"`
		OldSecretUntil store.Stamp `json:"old_secret_until,omitempty"`
	}{r.ID, r.URL, r.Description, strings.Fields(r.Events), r.Enabled, r.DisabledReason, store.Stamp(r.OldSecretUntil)})
	if err != nil {
		return "", fmt.Errorf("audit of %s: %w", r.ID, err)
	}
	return string(b), nil
}

// auditNote records a request that does not change the endpoint itself.
func auditNote(tx *gorm.DB, now int64, by order.By, action, endpointID, eventID string) error {
	b, err := json.Marshal(map[string]string{"id": endpointID, "event": eventID})
	if err != nil {
		return fmt.Errorf("audit of %s: %w", endpointID, err)
	}
	return auditWebhook(tx, &store.AuditRow{At: now, Actor: by.Actor, Action: action, After: string(b), RequestID: by.RequestID})
}

func auditWebhook(tx *gorm.DB, r *store.AuditRow) error {
	return store.WriteAudit(tx.Statement.Context, tx.Statement.ConnPool, r)
}
