package handler

import (
	"sort"
	"strconv"

	"flashsale/catalog"
)

// listItems answers GET /v1/items: a page of the items, by id.
func (e *edge) listItems(q *call) error {
	limit, err := q.pageLimit()
	if err != nil {
		return err
	}
	after := ""
	if q.query.Has("cursor") {
		var ok bool
		if after, ok = e.cursors.readItemCursor(q.query.Get("cursor")); !ok {
			return problemCursor
		}
	}
	v, err := e.Items.List(q.ctx())
	if err != nil {
		return err
	}
	now := e.Now() // the item may have been waited for
	return q.writePage(e.listPage(v, placeAfter(v, after), limit, now), now, age{v.Stale, now.Sub(v.LoadedAt)})
}

// placeAfter is the place in the list of the first item behind an id, which need
// not be there any more.
func placeAfter(v *catalog.ListView, id string) int {
	return sort.Search(len(v.Items), func(i int) bool { return v.Items[i].ID > id })
}

// getItem answers GET /v1/items/{item}.
func (e *edge) getItem(q *call) error {
	id := q.c.Param("item")
	v, err := e.Items.View(q.ctx(), id)
	if err != nil {
		return err
	}
	now := e.ItemNow(id)
	return q.writePage(itemPage(v, now), now, age{v.Stale, e.Now().Sub(v.LoadedAt)})
}

// writeItem writes one item.
func (e *edge) writeItem(q *call, status int, item *catalog.Item) error {
	q.out = appendItem(q.out[:0], item, e.ItemNow(item.ID))
	return q.json(status)
}

// writeItemTagged writes one item with its version as the tag that a change
// has to match. Buyers get another, weak one: stock and state vary under one
// version.
func (e *edge) writeItemTagged(q *call, status int, item *catalog.Item) error {
	h := q.c.Writer.Header()
	h["Etag"] = []string{`"` + strconv.FormatInt(item.Version, 10) + `"`}
	return e.writeItem(q, status, item)
}
