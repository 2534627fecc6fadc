package catalog

import (
	"fmt"
	"slices"
	"strings"
)

// Defence is a set of the cache's defences. Each can be turned off, to measure
// what it is worth.
type Defence uint8

// The defences.
const (
	// Avalanche spreads the expiries of what was loaded together.
	Avalanche Defence = 1 << iota
	// Breakdown lets one load an item for all: the others are given the value
	// before, or wait for the one.
	Breakdown
	// Bloom refuses ids that are surely none from memory.
	Bloom
	// Negatives remembers for a while that an id is none.
	Negatives
	// Penetration keeps ids that are none from the database.
	Penetration = Bloom | Negatives
)

var defenceNames = map[string]Defence{
	"avalanche": Avalanche, "breakdown": Breakdown, "bloom": Bloom, "negatives": Negatives, "penetration": Penetration,
}

// DefenceNames lists what ParseDefences knows.
func DefenceNames() []string {
	names := make([]string, 0, len(defenceNames))
	for name := range defenceNames {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ParseDefences reads a set of defences from their names.
func ParseDefences(names []string) (Defence, error) {
	var all Defence
	for _, name := range names {
		d, ok := defenceNames[name]
		if !ok {
			return 0, fmt.Errorf("catalog: %q is no defence; there are %s", name, strings.Join(DefenceNames(), ", "))
		}
		all |= d
	}
	return all, nil
}

// on reports whether the defence is in use.
func (c *Catalog) on(d Defence) bool { return c.cfg.Off&d == 0 }
