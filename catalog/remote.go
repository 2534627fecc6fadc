package catalog

import (
	"context"
	"crypto/rand"
	_ "embed" // for the scripts
	"encoding/json"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed lua/read.lua
	readLua string
	//go:embed lua/write.lua
	writeLua string
	//go:embed lua/invalidate.lua
	invalidateLua string
	//go:embed lua/announce.lua
	announceLua string

	readScript       = redis.NewScript(readLua)
	writeScript      = redis.NewScript(writeLua)
	invalidateScript = redis.NewScript(invalidateLua)
	announceScript   = redis.NewScript(announceLua)
)

// remote is the cache in Redis, which all processes share.
type remote struct {
	rdb       redis.UniversalClient
	keys      keys
	timeout   time.Duration
	downUntil atomic.Int64 // Unix nanoseconds until which Redis is not called
}

// downPause is how long Redis is not called after it did not answer, so that readers do
// not wait for a time-out each.
const downPause = 500 * time.Millisecond

func newRemote(cfg Config) *remote {
	return &remote{rdb: cfg.Redis, keys: keys{cfg.HashTag}, timeout: cfg.RedisTimeout}
}

// isDown reports whether Redis must not be called: it did not answer, or there is none.
func (r *remote) isDown() bool {
	return r == nil || time.Now().UnixNano() < r.downUntil.Load()
}

// call runs a script and notes whether Redis answers.
func (r *remote) call(ctx context.Context, s *redis.Script, key string, args ...any) (any, error) {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	v, err := s.Run(bounded, r.rdb, []string{key}, args...).Result()
	// The error of a caller that has left says nothing about Redis.
	if err != nil && ctx.Err() == nil {
		r.downUntil.Store(time.Now().Add(downPause).UnixNano())
	}
	return v, err
}

// remoteEntry is an item's entry in Redis.
type remoteEntry struct {
	item    Item
	version int64 // 0: there is no such item
	age     time.Duration
	askedAt time.Time
}

func (r *remote) read(ctx context.Context, id string) (e remoteEntry, found bool, err error) {
	e.askedAt = time.Now()
	v, err := r.call(ctx, readScript, r.keys.item(id))
	if err != nil {
		return e, false, fmt.Errorf("read item %s from Redis: %w", id, err)
	}
	list, ok := v.([]any)
	if !ok || len(list) != 3 {
		return e, false, nil
	}
	text := [3]string{}
	for i := range list {
		if text[i], ok = list[i].(string); !ok {
			return e, false, fmt.Errorf("read item %s from Redis: field %d is %T", id, i, list[i])
		}
	}
	version, err1 := strconv.ParseInt(text[0], 10, 64)
	age, err2 := strconv.ParseInt(text[1], 10, 64)
	if err1 != nil || err2 != nil {
		return e, false, fmt.Errorf("read item %s from Redis: version %q, age %q", id, text[0], text[1])
	}
	e.version, e.age = version, time.Duration(age)*time.Millisecond
	if version == 0 {
		return e, true, nil
	}
	if e.item, err = decodeItem(id, version, text[2]); err != nil {
		return e, false, err
	}
	return e, true, nil
}

func (r *remote) write(ctx context.Context, id string, a answer, life time.Duration) error {
	var body []byte
	var err error
	if a.exists {
		if body, err = encodeItem(&a.item); err != nil {
			return fmt.Errorf("write item %s to Redis: %w", id, err)
		}
	}
	age := time.Since(a.loadedAt)
	_, err = r.call(ctx, writeScript, r.keys.item(id),
		a.item.Version, (age + time.Millisecond - 1).Milliseconds(), max(life.Milliseconds(), 1), body)
	if err != nil {
		return fmt.Errorf("write item %s to Redis: %w", id, err)
	}
	return nil
}

// rememberVersion is how long the version of a changed item stays in Redis without the
// item. It is longer than any query to the database takes.
const rememberVersion = 30 * time.Second

// invalidate removes the entry of an item that is older than the version, and notifies
// every process.
func (r *remote) invalidate(ctx context.Context, id string, version int64) error {
	_, err := r.call(ctx, invalidateScript, r.keys.item(id), version, rememberVersion.Milliseconds(),
		itemsChannel, "changed "+strconv.FormatInt(version, 10)+" "+id)
	if err != nil {
		return fmt.Errorf("announce the change of item %s: %w", id, err)
	}
	return nil
}

// announce announces a new id to every process and returns its generation. With an empty
// id it returns the present generation.
func (r *remote) announce(ctx context.Context, id string) (string, error) {
	// A new word for each call: a word that is used twice could identify two counts.
	what := "announce the new item " + id
	if id == "" {
		what = "read the generation of the items"
	}
	v, err := r.call(ctx, announceScript, generationKey, rand.Text(), itemsChannel, id)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	generation, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s: answer is %T", what, v)
	}
	return generation, nil
}

// remoteItem is the JSON of an item in Redis; times in Unix milliseconds. Processes of several
// versions read each other's entries while they are replaced, so a new field is optional, and
// no field changes its meaning.
type remoteItem struct {
	Name          string  `json:"n"`
	Description   string  `json:"d,omitempty"`
	ImageURL      string  `json:"m,omitempty"`
	PriceMinor    int64   `json:"p"`
	Currency      string  `json:"c"`
	StockInitial  int64   `json:"i"`
	StockTotal    int64   `json:"t"`
	StockLeft     int64   `json:"l"`
	PerUserLimit  int64   `json:"u"`
	OpensAt       int64   `json:"o"`
	ClosesAt      int64   `json:"e,omitempty"`
	PaymentWindow int64   `json:"w,omitempty"`
	Control       Control `json:"s"`
	Buckets       int     `json:"b,omitempty"`
	Moves         int64   `json:"v,omitempty"`
}

func encodeItem(i *Item) ([]byte, error) {
	f := remoteItem{
		Name: i.Name, Description: i.Description, ImageURL: i.ImageURL, PriceMinor: i.PriceMinor, Currency: i.Currency,
		StockInitial: i.StockInitial, StockTotal: i.StockTotal, StockLeft: i.StockLeft, PerUserLimit: i.PerUserLimit,
		OpensAt: i.OpensAt.UnixMilli(), PaymentWindow: i.PaymentWindow.Milliseconds(), Control: i.Control, Buckets: i.Buckets, Moves: i.Moves,
	}
	if !i.ClosesAt.IsZero() {
		f.ClosesAt = i.ClosesAt.UnixMilli()
	}
	return json.Marshal(f)
}

func decodeItem(id string, version int64, body string) (Item, error) {
	var f remoteItem
	if err := json.Unmarshal([]byte(body), &f); err != nil {
		return Item{}, fmt.Errorf("read item %s from Redis: %w", id, err)
	}
	i := Item{
		ID: id, Name: f.Name, Description: f.Description, ImageURL: f.ImageURL, PriceMinor: f.PriceMinor, Currency: f.Currency,
		StockInitial: f.StockInitial, StockTotal: f.StockTotal, StockLeft: f.StockLeft, PerUserLimit: f.PerUserLimit,
		OpensAt: time.UnixMilli(f.OpensAt).UTC(), PaymentWindow: time.Duration(f.PaymentWindow) * time.Millisecond,
		Control: f.Control, Version: version, Buckets: f.Buckets, Moves: f.Moves,
	}
	if f.ClosesAt != 0 {
		i.ClosesAt = time.UnixMilli(f.ClosesAt).UTC()
	}
	return i, nil
}
