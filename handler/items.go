package handler

import (
	"strconv"

	"flashsale/catalog"
)

// listItems answers GET /v1/items.
func (e *edge) listItems(q *call) error {
	if err := checkAccept(q.c.Request.Header); err != nil {
		return err
	}
	items, err := e.Items.Items(q.ctx())
	if err != nil {
		return err
	}
	now := e.Now()
	b := append(q.out[:0], `{"items":[`...)
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendItem(b, &items[i], now)
	}
	q.out = append(b, `]}`...)
	return q.json(200)
}

// getItem answers GET /v1/items/{item}.
func (e *edge) getItem(q *call) error {
	item, err := e.readItem(q)
	if err != nil {
		return err
	}
	return e.writeItem(q, 200, &item)
}

// readItem returns the item that the path names.
func (e *edge) readItem(q *call) (catalog.Item, error) {
	id := q.c.Param("item")
	if !validItemID(id) {
		return catalog.Item{}, problemItemID
	}
	if err := checkAccept(q.c.Request.Header); err != nil {
		return catalog.Item{}, err
	}
	return e.Items.Item(q.ctx(), id)
}

// writeItem writes one item.
func (e *edge) writeItem(q *call, status int, item *catalog.Item) error {
	q.out = appendItem(q.out[:0], item, e.Now())
	return q.json(status)
}

// writeItemTagged writes one item with its version as the tag that a change
// has to match. Buyers get no tag: stock and state vary under one version, so
// it is no validator for a cache.
func (e *edge) writeItemTagged(q *call, status int, item *catalog.Item) error {
	h := q.c.Writer.Header()
	h["Etag"] = []string{`"` + strconv.FormatInt(item.Version, 10) + `"`}
	h["Cache-Control"] = headerNoStore
	return e.writeItem(q, status, item)
}
