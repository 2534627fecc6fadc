package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"flashsale/internal/testing/await"
	"flashsale/internal/testing/redistest"
)

// imageless is an entry as versions before image_url write it.
const imageless = `{"n":"Thing","d":"text","p":990,"c":"EUR","i":5,"t":7,"l":3,"u":2,"o":1900000000000,"w":90000,"s":"open"}`

func imagelessItem(id string) Item {
	return Item{
		ID: id, Name: "Thing", Description: "text", PriceMinor: 990, Currency: "EUR", StockInitial: 5, StockTotal: 7,
		StockLeft: 3, PerUserLimit: 2, OpensAt: time.UnixMilli(1_900_000_000_000).UTC(), PaymentWindow: 90 * time.Second,
		Control: ControlOpen, Version: 4,
	}
}

// TestFormat_OlderVersion: the entry of an older version is read, and an item without an image
// is written as the older version writes it.
func TestFormat_OlderVersion(t *testing.T) {
	t.Parallel()
	want := imagelessItem("thing")
	if got, err := decodeItem("thing", 4, imageless); err != nil || got != want {
		t.Errorf("decoded %+v, %v, want %+v", got, err, want)
	}
	if got, err := encodeItem(&want); err != nil || string(got) != imageless {
		t.Errorf("encoded %s, %v, want %s", got, err, imageless)
	}
}

// TestFormat_NewerVersion: an entry with a field of a newer version is read without it.
func TestFormat_NewerVersion(t *testing.T) {
	t.Parallel()
	want := imagelessItem("thing")
	want.ImageURL = "/images/thing.jpg"
	body, err := encodeItem(&want)
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(body), "{", `{"later":{"a":[1]},`, 1)
	if got, err := decodeItem("thing", 4, newer); err != nil || got != want {
		t.Errorf("decoded %+v, %v, want %+v", got, err, want)
	}
}

// TestRedis_EntryOfOlderVersion: while processes are replaced, an older one may store an item
// without its image. It is shown so until its next reload, and then with the image.
func TestRedis_EntryOfOlderVersion(t *testing.T) {
	t.Parallel()
	redistest.Universal(t, func(t *testing.T, rdb redis.UniversalClient) {
		item := imagelessItem(newID(t))
		item.ImageURL = "/images/thing.jpg"
		s := newShop(item)
		c := newProcess(t, s, rdb, patient())
		older := answer{item: item, exists: true, loadedAt: time.Now()}
		older.item.ImageURL = ""
		if err := c.remote.write(await.Context(t), item.ID, older, time.Hour); err != nil {
			t.Fatal(err)
		}
		if v, err := c.View(await.Context(t), item.ID); err != nil || v.Item.ImageURL != "" || v.Item.Name != item.Name {
			t.Fatalf("from Redis: %+v, %v, want the older version's entry", v, err)
		}
		wantCalls(t, s, 0, 0)
		expire(t, rdb, item.ID, c)
		await.True(t, "the item with its image", func() bool {
			v, err := c.View(await.Context(t), item.ID)
			return err == nil && v.Item.ImageURL == item.ImageURL
		})
	})
}
