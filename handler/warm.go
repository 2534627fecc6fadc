package handler

// warmItem answers POST /v1/admin/items/{item}/warm: it loads the item's page and
// its sale before the crowd comes. A repeat changes nothing.
func (e *edge) warmItem(q *call) error {
	id := q.c.Param("item")
	v, err := e.Items.Warm(q.ctx(), id)
	if err != nil {
		return err
	}
	return e.writeItemTagged(q, 200, &v.Item)
}
