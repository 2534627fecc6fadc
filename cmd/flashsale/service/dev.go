package service

import (
	"context"
	"errors"
	"time"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
	"flashsale/order"
	"flashsale/order/items"
	"flashsale/order/store"
)

// adminTokenLife is the lifetime of the admin token printed at the start.
const adminTokenLife = 24 * time.Hour

// developmentMode says that this is no setting for real money.
const developmentMode = "development: POST /dev/tokens hands out tokens; set FLASHSALE_JWT_SECRET or FLASHSALE_JWKS to end that"

// development is the mode of a service that no key is set for. Its key signs for everyone.
type development struct {
	settings *config.Settings
	key      []byte
}

// checkKeys checks that the role has the keys it needs. It returns development mode, whose key
// it creates if necessary, or nil if keys are configured.
func checkKeys(s *config.Settings, r Role) (*development, error) {
	if !r.api {
		return nil, nil
	}
	if err := s.NeedKey(r.command); err != nil {
		return nil, err
	}
	if s.JWTSecret != "" || s.JWKS != "" {
		return nil, nil
	}
	key, err := config.DevKey(s.DataDir)
	if err != nil {
		return nil, err
	}
	return &development{settings: s, key: key}, nil
}

// secret is the key; nil outside development mode.
func (d *development) secret() []byte {
	if d == nil {
		return nil
	}
	return d.key
}

// sign signs a token with development mode's key.
func (d *development) sign(sub string, role auth.Role, ttl time.Duration) (string, error) {
	terms, err := d.settings.Terms()
	if err != nil {
		return "", err
	}
	return d.settings.Sign(d.key, terms, sub, role, ttl)
}

// demoItem is the item that serve sells if the database is empty.
var demoItem = order.NewItem{
	ID: "demo", Name: "Demo sneaker", Description: "A hundred pairs, one each.",
	PriceMinor: 12900, Currency: "EUR", Stock: 100, PerUserLimit: 1, By: order.By{Actor: "flashsale serve"},
}

// openDemo creates the demo sale on an empty database.
func openDemo(ctx context.Context, store *store.Store, sales *items.Service) error {
	items, err := store.Items(ctx)
	if err != nil || len(items) > 0 {
		return err
	}
	_, err = sales.CreateItem(ctx, demoItem)
	if errors.Is(err, order.ErrItemExists) {
		return nil // another process was faster
	}
	return err
}
