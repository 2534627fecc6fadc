package handler

import (
	"sort"
	"strconv"
	"sync"
	"time"

	"flashsale/catalog"
)

// itemRoutes show the items to anyone.
type itemRoutes struct {
	items   Items
	cursors sealer
	now     func() time.Time
	itemNow func(item string) time.Time
	listing sync.Mutex // held while a page of the list is encoded for all
}

// list answers GET /v1/items: a page of the items, by id.
func (rs *itemRoutes) list(q *call) error {
	limit, err := q.pageLimit()
	if err != nil {
		return err
	}
	after := ""
	if q.query.Has("cursor") {
		var ok bool
		if after, ok = rs.cursors.readItemCursor(q.query.Get("cursor")); !ok {
			return problemCursor
		}
	}
	v, err := rs.items.List(q.ctx())
	if err != nil {
		return err
	}
	now := rs.now() // the item may have been waited for
	return q.writePage(rs.listPage(v, placeAfter(v, after), limit, now), now, age{v.Stale, now.Sub(v.LoadedAt)})
}

// placeAfter is the place in the list of the first item behind an id, which need
// not be there any more.
func placeAfter(v *catalog.ListView, id string) int {
	return sort.Search(len(v.Items), func(i int) bool { return v.Items[i].ID > id })
}

// get answers GET /v1/items/{item}.
func (rs *itemRoutes) get(q *call) error {
	id := q.c.Param("item")
	v, err := rs.items.View(q.ctx(), id)
	if err != nil {
		return err
	}
	now := rs.itemNow(id)
	return q.writePage(itemPage(v, now), now, age{v.Stale, rs.now().Sub(v.LoadedAt)})
}

// write writes one item.
func (rs *adminItemRoutes) write(q *call, status int, item *catalog.Item) error {
	q.out = appendItem(q.out[:0], item, rs.itemNow(item.ID))
	return q.json(status)
}

// writeTagged writes one item with its version as the tag that a change
// has to match. Buyers get another, weak one: stock and state vary under one
// version.
func (rs *adminItemRoutes) writeTagged(q *call, status int, item *catalog.Item) error {
	h := q.c.Writer.Header()
	h["Etag"] = []string{`"` + strconv.FormatInt(item.Version, 10) + `"`}
	return rs.write(q, status, item)
}
