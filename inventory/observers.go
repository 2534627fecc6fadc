package inventory

import "context"

// Observers are told what an Inventory notices. A nil function means: nothing is done.
type Observers struct {
	// OnChange is called for every item whose terms were changed, that has stock
	// again, or whose sale was loaded, on any process. It must be quick and must not
	// block. It misses what happens while the connection to Redis is lost.
	OnChange func(item string)
	// OnLoss is called when a sale is found gone or older than this process has
	// seen it, before it is reloaded: Redis may have lost more than this sale.
	// rewound is the epoch of a sale that is older, which proves it; 0 for one that
	// is gone. It returns once that was looked into, and may be called by several
	// at once.
	OnLoss func(ctx context.Context, rewound int64)
	// OnRestart is called before the first script on a server that does not know it:
	// one that was started since somebody last sold from it, or another one, maybe
	// with older data. After its error nothing is sold.
	OnRestart func(ctx context.Context) error
}

// For returns the Observers themselves, for those that are not built on the Inventory.
func (o Observers) For(*Inventory) (Observers, error) { return o, nil }

func (o Observers) withDefaults() Observers {
	if o.OnChange == nil {
		o.OnChange = func(string) {}
	}
	if o.OnLoss == nil {
		o.OnLoss = func(context.Context, int64) {}
	}
	if o.OnRestart == nil {
		o.OnRestart = func(context.Context) error { return nil }
	}
	return o
}
