package main

import (
	"os"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/admin"
	"flashsale/cmd/flashsale/config"
	"flashsale/cmd/flashsale/service"
)

// newRoot returns the command line. Without a command it runs serve. helpErr returns the error of
// writing a help, which executing the command does not return.
func newRoot() (root *cobra.Command, helpErr func() error) {
	root = &cobra.Command{
		Use:   "flashsale",
		Short: "Sell a fixed stock to a crowd of buyers that arrives within one second",
		Long: "flashsale sells a fixed stock to a crowd of buyers that arrives within one second.\n\n" +
			"Without a command, it runs API and worker in one process, by default on an embedded Redis\n" +
			"and a SQLite file. Each setting can be given as a flag, as an environment variable\n" +
			"(--ops-addr is FLASHSALE_OPS_ADDR), or in a YAML file named by --config.",
		Args:          config.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          runRole(service.Serve),
		Version:       thisBuild().String(),
	}
	// Without this, the library prints the error of writing the version to standard error, too.
	root.SetOut(os.Stdout)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(config.FlagError)
	config.DefineFlags(root.PersistentFlags())
	root.AddCommand(
		newServe(), newAPI(), newWorker(),
		newMigrate(), admin.Item(), admin.Order(), admin.Payment(), admin.Queue(), admin.Reconcile(), admin.Top(), newToken(), newConfig(), newDoctor(),
		newBackup(), newRestore(), newRecover(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run, c.RunE = nil, help
		case "completion":
			c.RunE = config.NeedCommand
			for _, shell := range append(c.Commands(), c) {
				shell.Args = config.NoArgs
			}
		}
	}
	return root, config.ShowReads(root)
}

// help shows the help of the command that the arguments name. The library's own shows that of
// the root for an unknown one.
func help(c *cobra.Command, args []string) error {
	named, rest, err := c.Root().Find(args)
	if err != nil {
		return config.Usage(err)
	}
	if len(rest) > 0 {
		return config.NoArgs(named, rest)
	}
	named.InitDefaultHelpFlag()
	named.InitDefaultVersionFlag()
	return named.Help()
}
