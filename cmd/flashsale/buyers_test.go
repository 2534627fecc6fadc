//go:build unix

package main_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"flashsale/handler/auth"
)

// An admin exports the data of a buyer and has it erased; the sale continues unchanged.
func TestBuyers_ExportAndErase(t *testing.T) {
	needProcesses(t)
	engines(t, nil, func(t *testing.T, s *shop, c *client) {
		const alice = "alice.of.the.test@example"
		item := s.newHeldItem(c, 5, 3600)
		paid := c.settle(item, c.buy(item, alice, alice+"-key", untilCommitted...))
		other := c.settle(item, c.buy(item, "bob", "k", untilCommitted...))
		if paid.Status != 201 || other.Status != 201 {
			t.Fatalf("buy: %s, %s", paid.verdict(), other.verdict())
		}
		if a := c.send(paid.Order.ID, "payment", "psp", auth.RoleService, rightPayment); a.Status != 200 {
			t.Fatalf("pay: %s", a.verdict())
		}
		var held struct {
			Orders   []struct{ ID, IdempotencyKey string }
			Payments []struct{ Reference string }
			Holdings []struct{ Quantity int64 }
		}
		a := c.admin("GET", "/v1/admin/buyers/"+alice, nil)
		a.decode(t, &held)
		if a.Status != 200 || len(held.Orders) != 1 || held.Orders[0].ID != paid.Order.ID ||
			len(held.Payments) != 1 || held.Payments[0].Reference != "psp-1" || len(held.Holdings) != 1 {
			t.Fatalf("export: %d %s", a.Status, a.Body)
		}
		// The answer may arrive before the task is removed from the queue.
		var erased struct {
			Pseudonym string
			Orders    int
		}
		eventually(t, "the buyer can be erased", soon, func() (bool, any) {
			a = c.admin("POST", "/v1/admin/buyers/"+alice+"/erase", map[string]any{"reason": "letter 7"})
			return a.verdict() != "409 orders_in_flight", a.verdict()
		})
		a.decode(t, &erased)
		if a.Status != 200 || erased.Orders != 1 || !auth.ValidSubject(erased.Pseudonym) {
			t.Fatalf("erase: %d %s", a.Status, a.Body)
		}
		var o struct {
			UserID           string `json:"user_id"`
			PaymentReference string `json:"payment_reference"`
			Status           string
		}
		a = c.admin("GET", "/v1/orders/"+paid.Order.ID, nil)
		a.decode(t, &o)
		if o.UserID != erased.Pseudonym || o.PaymentReference != "psp-1" || o.Status != "paid" {
			t.Errorf("the order: %s", a.Body)
		}
		if a := c.get("/v1/orders/"+paid.Order.ID, alice); a.Status != 404 {
			t.Errorf("the buyer reads it: %s", a.verdict())
		}
		if l := s.ledger(c, item); l.Left != 3 || l.Held != 1 || l.Sold != 1 {
			t.Errorf("ledger %+v", l)
		}
		if again := c.settle(item, c.buy(item, "bob", "k", untilCommitted...)); again.Order.ID != other.Order.ID || !again.replayed() {
			t.Errorf("another's repeat: %s %+v", again.verdict(), again.Order)
		}
		s.wantFilesWithout(alice, func() {
			c.admin("POST", "/v1/admin/buyers/"+alice+"/erase", map[string]any{"reason": "letter 7"})
		})
		if s.rdb != nil {
			s.wantRedisWithout(alice)
		}
	})
}

// wantFilesWithout waits until the database's files do not contain the name. A reader may have
// prevented the truncation of the log, which a repeat of the erasure performs.
func (s *shop) wantFilesWithout(name string, repeat func()) {
	s.t.Helper()
	if s.dbURL != "" {
		return // the files of Postgres keep old rows until it overwrites them
	}
	eventually(s.t, "the name is gone from the database's files", soon, func() (bool, any) {
		for _, file := range []string{s.dbPath, s.dbPath + "-wal"} {
			raw, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.t.Fatal(err)
			}
			if bytes.Contains(raw, []byte(name)) {
				repeat()
				return false, file
			}
		}
		return true, nil
	})
}

// wantRedisWithout checks that no key, field or value in Redis contains the name.
func (s *shop) wantRedisWithout(name string) {
	s.t.Helper()
	ctx := s.t.Context()
	for _, key := range s.rdb.Keys(ctx, "*").Val() {
		if value := s.rdb.Dump(ctx, key).Val(); strings.Contains(key+value, name) {
			s.t.Errorf("the key %s still contains the name", key)
		}
		for field := range s.rdb.HGetAll(ctx, key).Val() {
			if strings.Contains(field, name) {
				s.t.Errorf("the key %s still contains the name", key)
			}
		}
	}
}
