package handler

import (
	"flashsale/handler/apidocs"
)

// docsRoutes serve the API reference, to which the type of every problem links.
type docsRoutes struct{ page apidocs.Page }

// show answers GET /docs.
func (rs *docsRoutes) show(q *call) error {
	if err := rs.page.Serve(q.c.Writer, q.c.Request); err != nil {
		return errClientGone
	}
	return nil
}

// contract answers GET /openapi.yaml.
func (*docsRoutes) contract(q *call) error {
	if err := apidocs.ServeContract(q.c.Writer, q.c.Request); err != nil {
		return errClientGone
	}
	return nil
}

// asset answers GET /docs/assets/{asset}.
func (*docsRoutes) asset(q *call) error {
	if err := apidocs.ServeAsset(q.c.Writer, q.c.Request, q.c.Param("asset")); err != nil {
		return errClientGone
	}
	return nil
}
