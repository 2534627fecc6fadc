package handler

// warm answers POST /v1/admin/items/{item}/warm: it loads the item's page and
// its sale before the crowd comes. A repeat changes nothing.
func (rs *adminItemRoutes) warm(q *call) error {
	id := q.c.Param("item")
	v, err := rs.items.Warm(q.ctx(), id)
	if err != nil {
		return err
	}
	return rs.writeTagged(q, 200, &v.Item)
}
