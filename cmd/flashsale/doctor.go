package main

import (
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/cmd/flashsale/doctor"
)

func newDoctor() *cobra.Command {
	// It checks the other settings, too.
	return config.Reads(&cobra.Command{
		Use: "doctor", Short: "Check Redis, database, clock, keys and workers, and report what to fix; exit 1 if problems are found", Args: config.NoArgs,
		Long: "doctor checks everything that a process with these settings depends on: its keys, its data\n" +
			"directory, the database, Redis, the clock and the workers. It changes nothing, so it may run beside the\n" +
			"service. Lines with \"note\" or \"warn\" deserve attention; with a line \"fix\" the exit code is 1.",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Load(c.Flags())
			if err != nil {
				return err
			}
			return doctor.Run(c.Context(), s, time.Now, c.OutOrStdout())
		},
	}, "db", "redis", "data-dir", "config", config.Any)
}
