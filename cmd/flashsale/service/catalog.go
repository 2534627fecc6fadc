package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"flashsale/catalog"
	"flashsale/handler/ops"
	"flashsale/inventory"
	"flashsale/lock"
)

// itemLockTTL is how long the loading of an item is blocked by a process that died while it
// loaded the item.
const itemLockTTL = time.Second

// newCatalog returns the catalogue. Warming an item also loads its sale.
func newCatalog(ctx context.Context, e *env, eng *engine, stock *inventory.Inventory, ps *parts) (*catalog.Catalog, error) {
	// Separate from the locks of the sales, so that their metrics describe only sales.
	locks, err := lock.New(eng.rdb, lock.Config{TTL: itemLockTTL, ClaimTTL: lockClaimTTL, Liveness: lockLiveness, Metadata: processName()})
	if err != nil {
		return nil, err
	}
	ps.add(part{name: "locks of the catalogue", stop: locks.Close})
	items, err := catalog.New(ctx, eng.store, stock, catalog.Config{
		Redis: eng.rdb, Locks: locks, HashTag: eng.hashTag, Now: eng.clock.ItemNow,
		OpenSale: func(ctx context.Context, item string) error { return openSale(ctx, stock, item) },
		OnError:  e.reporter("catalog"),
	})
	if err != nil {
		return nil, err
	}
	catalogMetrics(e.registry, items)
	ps.add(part{name: "catalogue", run: items.Run, stop: items.Close})
	return items, nil
}

// openSaleWait bounds the wait for a sale to load before it opens. Loading a very large sale
// takes longer and continues.
const openSaleWait = 10 * time.Second

// openSale loads a sale if it is not loaded.
func openSale(ctx context.Context, stock *inventory.Inventory, item string) error {
	ctx, cancel := context.WithTimeout(ctx, openSaleWait)
	defer cancel()
	return stock.Warm(ctx, item)
}

// catalogMetrics registers the catalogue's metrics. Items are not labels.
func catalogMetrics(registry prometheus.Registerer, items *catalog.Catalog) {
	for _, m := range []struct {
		name, help, label, value string
		read                     func(catalog.Stats) int64
	}{
		{"flashsale_catalog_answers_total", "Items and ids answered, by the layer that had them.", "layer", "memory", func(s catalog.Stats) int64 { return s.Memory }},
		{"flashsale_catalog_answers_total", "Items and ids answered, by the layer that had them.", "layer", "redis", func(s catalog.Stats) int64 { return s.Redis }},
		{"flashsale_catalog_answers_total", "Items and ids answered, by the layer that had them.", "layer", "database", func(s catalog.Stats) int64 { return s.Database }},
		{"flashsale_catalog_refused_total", "Unknown ids refused before the database.", "by", "filter", func(s catalog.Stats) int64 { return s.Refused }},
		{"flashsale_catalog_refused_total", "Unknown ids refused before the database.", "by", "negative_entry", func(s catalog.Stats) int64 { return s.Negative }},
		{"flashsale_catalog_stale_total", "Stale items served during a reload.", "", "", func(s catalog.Stats) int64 { return s.Stale }},
		{"flashsale_catalog_database_queries_total", "Queries of the catalogue to the database.", "", "", func(s catalog.Stats) int64 { return s.Queries }},
		{"flashsale_catalog_changes_total", "Cached items dropped because they were changed.", "", "", func(s catalog.Stats) int64 { return s.Changed }},
	} {
		opts := prometheus.CounterOpts{Name: m.name, Help: m.help}
		if m.label != "" {
			opts.ConstLabels = prometheus.Labels{m.label: m.value}
		}
		registry.MustRegister(prometheus.NewCounterFunc(opts, func() float64 { return float64(m.read(items.Stats())) }))
	}
}

// catalogCheck makes readiness depend on the catalogue.
func catalogCheck(items *catalog.Catalog) ops.Check {
	return ops.Check{Name: "catalog", Probe: items.Ready}
}
