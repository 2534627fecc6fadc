package config

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestLoad_OpsAddr(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"127.0.0.1:9099": "127.0.0.1:9099", "off": "", "": ""} {
		s, _, err := loadWith("--ops-addr", value)
		if err != nil || s.OpsAddr != want {
			t.Errorf("--ops-addr %q: %q, %v; want %q", value, s.OpsAddr, err, want)
		}
	}
}

// TestMerge_UnknownVariables: a misspelt variable is reported. Those of settings and those that container platforms set are not.
func TestMerge_UnknownVariables(t *testing.T) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, envPrefix) {
			t.Setenv(name, "") // as if unset
		}
	}
	for name, value := range map[string]string{
		"FLASHSALE_JWT_SECERT": "x", "FLASHSALE_BATCHES": "1", "FLASHSALE_ADDR_": "", "FLASHSALE_BATCH": "22",
		"FLASHSALE_PORT": "tcp://10.0.0.7:8080", "FLASHSALE_SERVICE_HOST": "10.0.0.7", "FLASHSALE_SERVICE_PORT_HTTP": "8080",
		"FLASHSALE_API_PORT_8080_TCP_ADDR": "10.0.0.7", "FLASHSALE_API_PORT_8080_TCP": "tcp://10.0.0.7:8080",
	} {
		t.Setenv(name, value)
	}
	s, _, err := loadWith()
	if want := []string{"FLASHSALE_BATCHES", "FLASHSALE_JWT_SECERT"}; err != nil || s.Batch != 22 || !slices.Equal(s.UnknownVariables, want) {
		t.Errorf("batch %d, unknown %q, error %v; want batch 22, unknown %q", s.Batch, s.UnknownVariables, err, want)
	}
}
