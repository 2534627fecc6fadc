package admin

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// newItemWarm returns the command that loads items before the sale opens.
func newItemWarm(api *access) *cobra.Command {
	return &cobra.Command{
		Use: "warm [ID...]", Short: "Load items and their sales into every process before the sale opens",
		Long: "Load items and their sales into memory and Redis, in every process. Without an id: all items that\n" +
			"are not closed. The service does the same automatically in the two minutes before an opening.",
		Example: "  flashsale item warm drop-1",
		Args:    noEmptyArgs,
		RunE: func(c *cobra.Command, ids []string) error {
			r, err := api.dial(c, true)
			if err != nil {
				return err
			}
			if len(ids) == 0 {
				if ids, err = unclosed(c, r); err != nil {
					return err
				}
			}
			var warm []itemView
			var errs []error
			for _, id := range ids {
				var item itemView
				path := "/v1/admin/items/" + url.PathEscape(id) + "/warm"
				if err := r.call(c.Context(), http.MethodPost, path, nil, &item); err != nil {
					errs = append(errs, fmt.Errorf("item %s: %w", printable(id), err))
					continue
				}
				warm = append(warm, item)
			}
			if len(warm) > 0 {
				errs = append(errs, printItems(c.OutOrStdout(), warm))
			}
			return errors.Join(errs...)
		},
	}
}

// unclosed returns the items that can still be sold.
func unclosed(c *cobra.Command, r *remote) ([]string, error) {
	entries, err := r.items(c.Context())
	if err != nil {
		return nil, err
	}
	items, err := decodeEach[itemView](entries)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, i := range items {
		if i.State != "closed" {
			ids = append(ids, i.ID)
		}
	}
	return ids, nil
}
