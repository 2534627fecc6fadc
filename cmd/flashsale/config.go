package main

import (
	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
)

func newConfig() *cobra.Command {
	return &cobra.Command{
		Use: "config", Short: "Print the effective settings and the origin of each", Args: config.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Load(c.Flags())
			if err != nil {
				return err
			}
			return s.Print(c.OutOrStdout())
		},
	}
}
