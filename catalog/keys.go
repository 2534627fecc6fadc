package catalog

import "strconv"

// keys builds every Redis key of this room. An item's entry carries the hash tag
// of its partition, as its sale does, so that a cluster spreads both the same way.
type keys struct{ partition func(item string) int }

// tag opens every key of a partition.
func tag(partition int) string { return "fs:{p" + strconv.Itoa(partition) + "}:" }

// item is what is remembered of an item.
func (k keys) item(id string) string { return tag(k.partition(id)) + "item:" + id }

// lock is held by the process that loads the item for all.
func (k keys) lock(id string) string { return k.item(id) }

// generationKey counts the creations of items, so that a set of ids can tell
// whether it is complete.
const generationKey = "fs:{p0}:items:generation"

// itemsChannel tells of items that were created or have changed. It is no key.
const itemsChannel = "fs:{p0}:items"
