package config

import "testing"

// RedactURL leaves nothing that may be a secret.
func TestRedactURL(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"redis://127.0.0.1:6379/0":                                     "redis://127.0.0.1:6379/0",
		"redis://u:p@h:1/0":                                            "redis://u:xxxxx@h:1/0",
		"redis://p@h:1/0":                                              "redis://xxxxx@h:1/0",
		"redis://h:1/0?password=p&db=2":                                "redis://h:1/0?password=xxxxx&db=2",
		"https://h/j?X-Sig=a%2Fb#f":                                    "https://h/j?X-Sig=xxxxx#f",
		"cluster+redis://h:1?addr=h:2&auth_token=t&x=":                 "cluster+redis://h:1?addr=h:2&auth_token=xxxxx&x=",
		"sentinel+redis://u:p@h:1?username=s&password=p&master_name=m": "sentinel+redis://u:xxxxx@h:1?username=s&password=xxxxx&master_name=m",
		"postgres://u:p@h:1/shop?password=p":                           "postgres://u:xxxxx@h:1/shop?password=xxxxx",
		"sqlite:a?b":                                                   "sqlite:a?b",
	} {
		if got := RedactURL(from); got != want {
			t.Errorf("%s is printed as %s, want %s", from, got, want)
		}
	}
}
