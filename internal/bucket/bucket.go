// Package bucket names the parts of an item whose stock is divided into buckets. Each bucket is
// sold like an item of its own, under an id of its own. Bucket 0 has the id of the item.
package bucket

import (
	"strconv"
	"strings"

	"flashsale/internal/fnv1a"
)

// Max is the largest number of buckets of an item.
const Max = 64

// separator stands between an item's id, which cannot contain it, and the number of a bucket.
const separator = '.'

// ID returns the id under which bucket n of an item is sold.
func ID(item string, n int) string {
	if n == 0 {
		return item
	}
	return item + string(separator) + strconv.Itoa(n)
}

// IDs returns the ids of an item's first n buckets, at least one.
func IDs(item string, n int) []string { return AppendIDs(nil, item, n) }

// AppendIDs appends the ids of an item's first n buckets, at least one.
func AppendIDs(ids []string, item string, n int) []string {
	for i := range max(n, 1) {
		ids = append(ids, ID(item, i))
	}
	return ids
}

// Split returns the item of a bucket, and the bucket's number.
func Split(id string) (item string, n int) {
	i := strings.IndexByte(id, separator)
	if i < 0 {
		return id, 0
	}
	n, err := strconv.Atoi(id[i+1:])
	if err != nil || n < 1 {
		return id, 0
	}
	return id[:i], n
}

// Item returns the item of a bucket.
func Item(id string) string {
	item, _ := Split(id)
	return item
}

// Home returns the id of the bucket, out of n, from which a buyer buys. It is always the same
// one, so that the limit and the idempotency keys of a buyer are checked in one sale.
func Home(item, buyer string, n int) string {
	if n <= 1 {
		return item
	}
	h := fnv1a.Add(fnv1a.Start, buyer)
	return ID(item, int((h^h>>32)%uint64(n))) //nolint:gosec // less than n
}

// Sum returns the units left of an item, given those of its buckets; -1 stands for units that
// are not known.
func Sum(left []int64) int64 {
	var sum int64
	for _, n := range left {
		if n < 0 {
			return -1
		}
		sum += n
	}
	return sum
}
