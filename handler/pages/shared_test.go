package pages

import (
	"bytes"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"flashsale/catalog"
)

// sharedItem is the page of an item for a buyer, or for a reader without a session.
func sharedItem(language, id, buyer, key string, left int64) *ItemPage {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	return &ItemPage{
		Frame: Frame{Language: LanguageNamed(language), Path: "/items/" + id, Buyer: buyer},
		Item: Item{
			Item: catalog.Item{ID: id, Name: "<Thing>", Description: "Two\nlines & more", PriceMinor: 100, Currency: "EUR",
				StockTotal: 10, StockLeft: left, PerUserLimit: 2, OpensAt: now},
			State: catalog.StateOpen, Image: "/items/" + id + "/image.svg", Now: now,
		},
		Key: key, Quantity: 1,
	}
}

// written returns what a shared page shows.
func written(t *testing.T, c *SharedPages, p *ItemPage, now time.Time) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.Item(&b, p, now); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// Every reader of a kept page sees what a page of their own would show.
func TestSharedPages_SameAsRender(t *testing.T) {
	t.Parallel()
	var c SharedPages
	now := time.Now()
	for range 2 { // rendered, then kept
		for _, language := range []string{"en", "zh"} {
			for _, buyer := range []string{"", "alice", "bob.b:c@d-e_f", "carol"} {
				for _, id := range []string{"a", "b"} {
					p := sharedItem(language, id, buyer, "KEY"+buyer+id, 5)
					p.AtLimit = buyer == "carol"
					var want bytes.Buffer
					if err := Render(&want, "shop/item", p); err != nil {
						t.Fatal(err)
					}
					if got := written(t, &c, p, now); got != want.String() {
						t.Errorf("%s %s %q: the kept page differs:\n%s", language, id, buyer, got)
					}
				}
			}
		}
	}
	if len(c.kept) != 12 {
		t.Errorf("%d pages are kept, want one for each item and language without a session, with one, and at the limit", len(c.kept))
	}
}

// The pages of the list are kept by their cursor, and are not read again while they are shown.
func TestSharedPages_Items(t *testing.T) {
	t.Parallel()
	var c SharedPages
	now, reads := time.Now(), 0
	for range 2 {
		for _, cursor := range []string{"", "next"} {
			for _, buyer := range []string{"", "alice", "bob"} {
				f := Frame{Language: LanguageNamed("en"), Path: "/", Buyer: buyer, Query: url.Values{"cursor": {cursor}}}
				list := Items{Items: []Item{sharedItem("en", "thing"+cursor, "", "", 5).Item}}
				var got, want bytes.Buffer
				if err := c.Items(&got, &f, now, func() (Items, error) { reads++; return list, nil }); err != nil {
					t.Fatal(err)
				}
				list.Frame = f
				if err := Render(&want, "shop/items", &list); err != nil {
					t.Fatal(err)
				}
				if got.String() != want.String() {
					t.Errorf("cursor %q, %q: the kept page differs:\n%s", cursor, buyer, got.String())
				}
			}
		}
	}
	if reads != 4 {
		t.Errorf("the list was read %d times, want once for each cursor, with and without a session", reads)
	}
}

// A failed read is not kept.
func TestSharedPages_Items_Error(t *testing.T) {
	t.Parallel()
	var c SharedPages
	f := Frame{Language: LanguageNamed("en"), Path: "/"}
	failed := errors.New("failed")
	if err := c.Items(io.Discard, &f, time.Now(), func() (Items, error) { return Items{}, failed }); !errors.Is(err, failed) || len(c.kept) != 0 {
		t.Errorf("%v, %d pages are kept", err, len(c.kept))
	}
}

// A kept page is shown for a quarter of a second, and not before it was rendered.
func TestSharedPages_Age(t *testing.T) {
	t.Parallel()
	for age, want := range map[time.Duration]string{0: "5 of 10", sharedLife: "5 of 10", sharedLife + 1: "4 of 10", -1: "4 of 10"} {
		var c SharedPages
		now := time.Now()
		written(t, &c, sharedItem("en", "a", "alice", "k", 5), now)
		if got := written(t, &c, sharedItem("en", "a", "alice", "k", 4), now.Add(age)); !strings.Contains(got, want) {
			t.Errorf("after %v the page does not show %q", age, want)
		}
	}
}

// The kept pages are bounded.
func TestSharedPages_Bound(t *testing.T) {
	t.Parallel()
	var c SharedPages
	now := time.Now()
	page := &sharedPage{at: now}
	for i := range 3 * maxSharedPages {
		c.keep(sharedKey{path: strconv.Itoa(i)}, page)
		if len(c.kept) > maxSharedPages {
			t.Fatalf("%d pages are kept, want at most %d", len(c.kept), maxSharedPages)
		}
	}
}

// BenchmarkSharedPages is the page of an item for one reader of many.
func BenchmarkSharedPages(b *testing.B) {
	var c SharedPages
	p, now := sharedItem("en", "a", "alice", "k", 5), time.Now()
	var out bytes.Buffer
	for b.Loop() {
		out.Reset()
		if err := c.Item(&out, p, now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRender is the same page, rendered for the reader.
func BenchmarkRender(b *testing.B) {
	p := sharedItem("en", "a", "alice", "k", 5)
	var out bytes.Buffer
	for b.Loop() {
		out.Reset()
		if err := Render(&out, "shop/item", p); err != nil {
			b.Fatal(err)
		}
	}
}
