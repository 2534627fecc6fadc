package config

import "testing"

func TestLoad_OpsAddr(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"127.0.0.1:9099": "127.0.0.1:9099", "off": "", "": ""} {
		s, _, err := loadWith("--ops-addr", value)
		if err != nil || s.OpsAddr != want {
			t.Errorf("--ops-addr %q: %q, %v; want %q", value, s.OpsAddr, err, want)
		}
	}
}
