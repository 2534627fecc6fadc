package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// order is a purchase on its way to a row of the table orders.
type order struct {
	ID       string    `json:"id"`
	Item     string    `json:"item"`
	Buyer    string    `json:"buyer"`
	Key      string    `json:"key"` // the idempotency key
	Quantity int64     `json:"quantity"`
	Created  time.Time `json:"created"`
}

// perBuyer is how many units of an item a buyer may buy.
const perBuyer = 10

// The business refusals of a seller.
var (
	errSoldOut = errors.New("peers: sold out")
	errLimit   = errors.New("peers: limit per buyer reached")
)

// seller decides purchases, in the process of a contender.
type seller interface {
	// sell takes the units of an order and places it, and returns its id. If the buyer has
	// ordered with this key before, it returns the id of that order and takes nothing. It
	// returns errSoldOut or errLimit for a refusal; after other errors the outcome is unknown.
	sell(ctx context.Context, o order) (id string, err error)
	// close places what has been accepted and releases the connections. No sell may run.
	close(ctx context.Context) error
}

// contender is one way to build the service.
type contender struct {
	name     string
	approach string // for the table
	// answer is the status of an accepted purchase: 201 after the row, 202 before it.
	answer int
	// ours says that it is this repository's service.
	ours bool
	// open makes the seller of the contender's own process; nil for programs that have none.
	open func(ctx context.Context, s settings) (seller, error)
	// prepare sets up the rig's servers, its database, its stock and its processes.
	prepare func(ctx context.Context, s *rig) error
	// missing is why the contender cannot run on this machine; nil: it needs nothing special.
	missing func() error
	// patience is how long after a restart an accepted order may still become a row although
	// nothing has changed meanwhile.
	patience time.Duration
}

const (
	emptyName = "empty"
	// defaultPatience suits contenders that do all work at once after a restart.
	defaultPatience = 3 * time.Second
)

// contenders lists all, this repository's service first.
func contenders() []contender {
	return []contender{
		serviceContender("flashsale", "this service, `Prefer: respond-async`", http.StatusAccepted),
		serviceContender("flashsale-201", "this service, default", http.StatusCreated),
		redsyncContender(),
		watchContender(),
		channelContender(),
		asynqContender(),
		postgresContender(),
		sqliteContender(),
	}
}

// emptyContender is the empty handler, the measure of all others. It has no orders.
func emptyContender() contender {
	return contender{name: emptyName, answer: http.StatusCreated, prepare: func(_ context.Context, s *rig) error {
		s.stock = noStock{}
		return s.serveSelf("", "")
	}}
}

// noStock is the stock of the empty handler.
type noStock struct{}

func (noStock) put(context.Context, string, int64) error    { return nil }
func (noStock) left(context.Context, string) (int64, error) { return 0, nil }

// find returns the contender of that name.
func find(name string) (contender, error) {
	all := append(contenders(), emptyContender())
	if i := slices.IndexFunc(all, func(c contender) bool { return c.name == name }); i >= 0 {
		return all[i], nil
	}
	return contender{}, fmt.Errorf("no contender %q, there are %s", name, names(all))
}

// choose returns the contenders with the given names, separated by commas; all for "".
func choose(only string) ([]contender, error) {
	if only == "" {
		return contenders(), nil
	}
	var chosen []contender
	for name := range strings.SplitSeq(only, ",") {
		c, err := find(strings.TrimSpace(name))
		if err != nil {
			return nil, err
		}
		if c.name != emptyName { // it is always measured
			chosen = append(chosen, c)
		}
	}
	return chosen, nil
}

func names(all []contender) string {
	list := make([]string, 0, len(all))
	for _, c := range all {
		list = append(list, c.name)
	}
	return strings.Join(list, ", ")
}
