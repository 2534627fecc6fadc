package main

import (
	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/cmd/flashsale/service"
)

func runRole(r service.Role) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error {
		s, err := config.Load(c.Flags())
		if err != nil {
			return err
		}
		return service.Run(c.Context(), s, r, thisBuild(), c.OutOrStdout())
	}
}

func newServe() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Run API and worker in one process", Args: config.NoArgs,
		RunE: runRole(service.Serve),
	}
}

func newAPI() *cobra.Command {
	return &cobra.Command{
		Use: "api", Short: "Run only the API; it needs Redis and a migrated database", Args: config.NoArgs,
		RunE: runRole(service.API),
	}
}

func newWorker() *cobra.Command {
	return &cobra.Command{
		Use: "worker", Short: "Run only a worker; it needs Redis and a migrated database", Args: config.NoArgs,
		RunE: runRole(service.Worker),
	}
}
