package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"flashsale/cmd/flashsale/config"
	"flashsale/handler/auth"
)

func newToken() *cobra.Command {
	var sub, roleName string
	var ttl time.Duration
	c := &cobra.Command{
		Use: "token", Short: "Sign a token with the configured key", Args: config.NoArgs,
		Example: "  flashsale token --sub alice --role buyer --ttl 1h",
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := config.Load(c.Flags())
			if err != nil {
				return err
			}
			switch {
			case !c.Flags().Changed("sub"):
				return config.Usage(errors.New("token needs --sub, the id of the buyer, admin or service; see flashsale token --help"))
			case !auth.ValidSubject(sub):
				return config.Usage(fmt.Errorf("--sub %q: use 1 to 128 of A-Z a-z 0-9 . _ : @ -", sub))
			case !auth.Role(roleName).Valid():
				return config.Usage(fmt.Errorf("--role %q: use buyer, admin or service", roleName))
			case ttl < time.Second:
				return config.Usage(fmt.Errorf("--ttl %v: use a second or more", ttl))
			}
			key, terms, err := s.Signer(auth.Role(roleName))
			if err != nil {
				return err
			}
			token, err := s.Sign(key, terms, sub, auth.Role(roleName), ttl)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), token)
			return err
		},
	}
	c.Flags().StringVar(&sub, "sub", "", "subject of the token: the id of the buyer, admin or service; required")
	c.Flags().StringVar(&roleName, "role", string(auth.RoleBuyer), "buyer, admin or service")
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "lifetime of the token")
	return config.Reads(c, "jwt-secret", "data-dir", "config")
}
