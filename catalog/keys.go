package catalog

// keys builds every Redis key of this package. An item's entry carries the hash tag of its
// partition, as its sale does, so that both are in the same slot of a cluster.
type keys struct{ hashTag func(item string) string }

// item holds an item's cached entry.
func (k keys) item(id string) string { return "fs:{" + k.hashTag(id) + "}:item:" + id }

// lock is held by the process that loads the item for all.
func (k keys) lock(id string) string { return k.item(id) }

// generationKey counts the creations of items. It shows whether a set of ids is complete.
const generationKey = "fs:{p0}:items:generation"

// itemsChannel is the channel of created and changed items. It is not a key.
const itemsChannel = "fs:{p0}:items"
