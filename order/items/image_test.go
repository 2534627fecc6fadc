package items_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"flashsale/catalog"
	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
	"flashsale/order/items"
	"flashsale/order/ordertest"
	"flashsale/order/shoptest"
)

// TestService_Image: an item's image is set at creation, changed and removed, every reader gets
// the present one, and the audit log has each change.
func TestService_Image(t *testing.T) {
	t.Parallel()
	redistest.Engines(t, func(t *testing.T, rdb *redis.Client) {
		n := ordertest.NewItem("", 5, 2)
		n.ImageURL = "/images/a.jpg"
		s := shoptest.New(t, rdb, false, n)
		shown := func(want string) {
			t.Helper()
			fromDatabase, err := s.Sales.Item(await.Context(t), s.Item)
			if err != nil || fromDatabase.ImageURL != want {
				t.Errorf("database: %q, %v, want %q", fromDatabase.ImageURL, err, want)
			}
			if cached, err := s.Items.Item(await.Context(t), s.Item); err != nil || cached.ImageURL != want {
				t.Errorf("catalogue: %q, %v, want %q", cached.ImageURL, err, want)
			}
			list, err := s.Items.List(await.Context(t))
			if err != nil || len(list.Items) != 1 || list.Items[0].ImageURL != want {
				t.Errorf("list: %+v, %v, want %q", list, err, want)
			}
		}
		change := func(c items.Change, want catalog.Item) {
			t.Helper()
			if got := s.MustChange(c); got != want {
				t.Errorf("changed to %+v, want %+v", got, want)
			}
			shown(want.ImageURL)
		}
		shown("/images/a.jpg")
		want, err := s.Sales.Item(await.Context(t), s.Item)
		if err != nil {
			t.Fatal(err)
		}
		want.ImageURL, want.Version = "/images/b.jpg?v=2", 2
		change(items.Change{ImageURL: ordertest.Ptr("/images/b.jpg?v=2")}, want)
		change(items.Change{ImageURL: ordertest.Ptr("/images/b.jpg?v=2")}, want) // the same
		want.Name, want.Version = "Other", 3
		change(items.Change{Name: ordertest.Ptr("Other")}, want)
		want.ImageURL, want.Version = "", 4
		change(items.Change{ImageURL: ordertest.Ptr("")}, want)
		log := strings.Join(ordertest.AuditLog(t, s.Store, s.Item), "\n")
		for _, part := range []string{
			`"image_url":"/images/a.jpg","name"`,
			`{"image_url":"/images/a.jpg"} -> {"image_url":"/images/b.jpg?v=2"}`,
			`{"name":"Thing"} -> {"name":"Other"}`,
			`{"image_url":"/images/b.jpg?v=2"} -> {"image_url":""}`,
		} {
			if !strings.Contains(log, part) {
				t.Errorf("the audit log lacks %s:\n%s", part, log)
			}
		}
	})
}
