// Package hashtag names the hash tags of the partitions of Redis keys, so that the slots of the
// partitions are spread evenly over the masters of a Redis Cluster.
package hashtag

import (
	"fmt"
	"math"
	"sync"
)

// Slots is the number of slots of a Redis Cluster.
const Slots = 16384

// first is the slot of "p0", the tag of partition 0 and therefore of the only one.
const first = 15882

// Of returns the hash tag of a partition, for that number of partitions: "p0", "p1-17". The tags'
// slots have even distances, whereas those of "p0", "p1", "p2" and so on differ by their last bits
// and form four clusters. Consecutive partitions are far apart, because an item's buckets are in
// consecutive ones. It panics unless 0 <= partition < partitions.
func Of(partition, partitions int) string {
	if partitions == 1 && partition == 0 {
		return "p0"
	}
	tags, ok := layouts.Load(partitions)
	if !ok {
		tags, _ = layouts.LoadOrStore(partitions, layout(partitions))
	}
	return tags.([]string)[partition]
}

// off is the greatest distance of a tag's slot from the wanted one. With 32 and with 64 partitions
// the wanted slots are 10 slots from the borders of the masters' ranges.
const off = 8

// layouts are the tags of all partitions, by the number of partitions.
var layouts sync.Map

// layout names the tags for a number of partitions.
func layout(partitions int) []string {
	tags := make([]string, partitions)
	step := stride(partitions)
	for p := range tags {
		place := p * step % partitions
		tags[p] = near(p, (first+place*Slots/partitions)%Slots)
	}
	return tags
}

// stride is the distance of consecutive partitions, in places. It has no divisor in common with
// the number of places, so each place is used once, and it is close to the golden section of that
// number, which spreads any run of consecutive partitions (Knuth, The Art of Computer Programming,
// volume 3, section 6.4, theorem S).
func stride(places int) int {
	s := max(1, int(math.Round(float64(places)*(math.Sqrt(5)-1)/2)))
	for gcd(s, places) != 1 {
		s++
	}
	return s
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// near returns the first tag of a partition whose slot is at most off slots from the target.
func near(partition, target int) string {
	name := fmt.Sprintf("p%d", partition)
	for n := 0; ; n++ {
		if distance := (Slot(name) - target + Slots) % Slots; min(distance, Slots-distance) <= off {
			return name
		}
		name = fmt.Sprintf("p%d-%d", partition, n)
	}
}

// Slot returns the slot of a hash tag: its CRC-16 (XMODEM) modulo [Slots]. Source: the Redis Cluster
// specification.
func Slot(tag string) int {
	var crc uint16
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % Slots
}
