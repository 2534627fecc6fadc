// Package vendored checks folders with files of other projects.
package vendored

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	hashLine  = regexp.MustCompile(`(?m)^([0-9a-f]{64})  (\S+)$`)
	version   = regexp.MustCompile(`(?m)^version +\d+\.\d+\.\d+$`)
	integrity = regexp.MustCompile(`(?m)^integrity +sha512-[A-Za-z0-9+/]{86}==$`)
)

// Problems compares a folder with its file VENDOR, which states the version and the hash of the
// package the files come from, and lists their SHA-256. A file "NAME.gz" is listed twice: as it
// is, and as NAME with the hash of its content. It returns a line for each difference.
func Problems(folder fs.FS) (problems []string, err error) {
	vendor, err := fs.ReadFile(folder, "VENDOR")
	if err != nil {
		return nil, err
	}
	if !version.Match(vendor) || !integrity.Match(vendor) {
		problems = append(problems, "VENDOR does not state the version and the hash of the package")
	}
	listed := map[string]string{}
	for _, m := range hashLine.FindAllStringSubmatch(string(vendor), -1) {
		listed[m[2]] = m[1]
	}
	check := func(name string, data []byte) {
		sum := sha256.Sum256(data)
		if got := hex.EncodeToString(sum[:]); listed[name] != got {
			problems = append(problems, fmt.Sprintf("%s has the hash %s; VENDOR says %q", name, got, listed[name]))
		}
		delete(listed, name)
	}
	entries, err := fs.ReadDir(folder, ".")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if entry.Name() == "VENDOR" {
			continue
		}
		data, err := fs.ReadFile(folder, entry.Name())
		if err != nil {
			return nil, err
		}
		check(entry.Name(), data)
		name, packed := strings.CutSuffix(entry.Name(), ".gz")
		if !packed {
			continue
		}
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		if data, err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		check(name, data)
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		problems = append(problems, fmt.Sprintf("VENDOR lists %s, which does not exist", name))
	}
	return problems, nil
}
