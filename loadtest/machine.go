package main

import (
	"bufio"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// machine describes the computer of the load test. It has no host name, so that a report
// can be passed on.
type machine struct {
	CPU      string  `json:"cpu,omitempty"`
	Cores    int     `json:"cores"`
	MemoryGB float64 `json:"memory_gb,omitempty"`
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
	Go       string  `json:"go"`
}

// thisMachine reads what the system states. Linux states everything; elsewhere the CPU and
// the memory are left out.
func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), OS: runtime.GOOS, Arch: runtime.GOARCH, Go: runtime.Version()}
	m.CPU = fieldOf("/proc/cpuinfo", "model name", ":")
	if kb, err := strconv.ParseFloat(strings.TrimSuffix(fieldOf("/proc/meminfo", "MemTotal", ":"), " kB"), 64); err == nil {
		m.MemoryGB = float64(int64(kb/(1<<20)*10+0.5)) / 10
	}
	if name := strings.Trim(fieldOf("/etc/os-release", "PRETTY_NAME", "="), `"`); name != "" {
		m.OS = name
	}
	return m
}

// fieldOf returns the first value of a name in a file of names and values, or an empty text.
func fieldOf(path, name, separator string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer closeQuietly(f)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, found := strings.Cut(lines.Text(), separator)
		if found && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
