package worker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"flashsale/queue"
)

// DeadGroup are the dead letters whose reasons differ only in ids and numbers.
type DeadGroup struct {
	// ID is a hash of Reason, the same in every process.
	ID string
	// Reason is the start of the reason, up to 512 bytes, with {id} for each id and {n} for
	// each number.
	Reason          string
	Count           int
	FirstAt, LastAt time.Time // of death
	Example         string    // the id of the task that died last
}

// DeadGroups are the groups of the dead letters.
type DeadGroups struct {
	Groups   []DeadGroup // the largest first
	Omitted  int         // groups that are not listed, because they are smaller
	Counted  int         // letters that were examined
	Total    int         // letters that exist
	Complete bool        // all letters were examined
	// CountedAt is when the letters were counted, by the earliest of the queues' clocks. As
	// DeadSelection.Before, it selects no letter that died later.
	CountedAt time.Time
}

// The bounds of Groups.
const (
	maxCounted = 20_000
	maxGroups  = 100
)

// groupsTime is how long Groups may take, except in tests.
const groupsTime = 2 * time.Second

// Groups groups the dead letters of all queues by their reasons. It examines at most 20,000
// of them: of each queue the latest, in proportion to how many it has. Errors:
// inventory.ErrUnavailable.
func (b *Backlog) Groups(ctx context.Context) (DeadGroups, error) {
	var out DeadGroups
	totals := make([]int, len(b.queues))
	for i, q := range b.queues {
		s, err := q.Queue.Stats(ctx)
		if err != nil {
			return DeadGroups{}, unreachable(q.Name, err)
		}
		totals[i] = s.Dead
		if out.CountedAt.IsZero() || s.At.Before(out.CountedAt) {
			out.CountedAt = s.At
		}
		out.Total += s.Dead
	}
	start := time.Now()
	groups := make(map[string]*DeadGroup)
	for i, q := range b.queues {
		limit := totals[i]
		if out.Total > maxCounted {
			limit = (totals[i]*maxCounted + out.Total - 1) / out.Total
		}
		n, err := countGroups(ctx, q.Queue, groups, limit, start.Add(b.groupsTime))
		if err != nil {
			return DeadGroups{}, unreachable(q.Name, err)
		}
		out.Counted += n
	}
	// Letters that died meanwhile are not in the total.
	out.Total = max(out.Total, out.Counted)
	out.Complete = out.Counted == out.Total
	for _, g := range groups {
		out.Groups = append(out.Groups, *g)
	}
	slices.SortFunc(out.Groups, func(a, b DeadGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	out.Omitted = max(0, len(out.Groups)-maxGroups)
	out.Groups = out.Groups[:len(out.Groups)-out.Omitted]
	return out, nil
}

// countGroups adds the latest letters of a queue to the groups, up to limit, and returns how
// many it has added.
func countGroups(ctx context.Context, q *queue.Queue, groups map[string]*DeadGroup, limit int, until time.Time) (n int, err error) {
	letters := queue.Query{State: queue.StateDead, Reverse: true, Fields: queue.BriefFields}
	for n < limit && time.Now().Before(until) {
		letters.Limit = min(briefPage, limit-n)
		page, err := q.List(ctx, letters)
		if err != nil {
			return n, err
		}
		for i := range page.Tasks {
			brief := &page.Tasks[i]
			reason := plainReason(brief.Reason)
			g := groups[reason]
			if g == nil {
				g = &DeadGroup{ID: groupID(reason), Reason: reason, FirstAt: brief.At}
				groups[reason] = g
			}
			g.Count++
			if brief.At.Before(g.FirstAt) {
				g.FirstAt = brief.At
			}
			if g.Example == "" || brief.At.After(g.LastAt) {
				g.LastAt, g.Example = brief.At, brief.ID
			}
		}
		n += len(page.Tasks)
		if letters.After = page.Next; letters.After == (queue.Place{}) {
			break
		}
	}
	return n, nil
}

// groupOf returns the id of the group of letters with a reason.
func groupOf(reason string) string { return groupID(plainReason(reason)) }

func groupID(plain string) string {
	sum := sha256.Sum256([]byte(plain))
	return hex.EncodeToString(sum[:8])
}

// plainReason returns the start of a reason with {id} for each id and {n} for each number.
func plainReason(reason string) string {
	if len(reason) > queue.BriefReason-utf8.UTFMax {
		// Its last word may be cut, and then differ although the whole words would not.
		reason = strings.ToValidUTF8(reason[:min(len(reason), queue.BriefReason)], "")
		if i := strings.LastIndexByte(reason, ' '); i > 0 {
			reason = reason[:i]
		}
	}
	var b strings.Builder
	b.Grow(len(reason))
	for i := 0; i < len(reason); {
		switch n := wordLength(reason[i:]); {
		case isUUID(reason[i:]):
			b.WriteString("{id}")
			i += uuidLength
		case n == 0:
			b.WriteByte(reason[i])
			i++
		default:
			plainWord(&b, reason[i:i+n])
			i += n
		}
	}
	out := b.String()
	if len(out) > queue.BriefReason { // a placeholder may be longer than what it replaces
		out = strings.ToValidUTF8(out[:queue.BriefReason], "")
	}
	return out
}

// The shortest words that are taken for ids: of hexadecimal digits, and of any letters. They
// have at least one digit.
const (
	shortestHex = 8
	shortestID  = 16
)

// plainWord appends a word of letters and digits.
func plainWord(b *strings.Builder, word string) {
	digits := strings.IndexFunc(word, func(c rune) bool { return isDigit(byte(c)) }) >= 0
	text := strings.IndexFunc(word, func(c rune) bool { return !isDigit(byte(c)) }) >= 0
	isHex := strings.Trim(word, "0123456789abcdefABCDEF") == ""
	switch {
	case !digits:
		b.WriteString(word)
		return
	case text && (isHex && len(word) >= shortestHex || len(word) >= shortestID || strings.HasPrefix(word, "0x")):
		b.WriteString("{id}")
		return
	}
	for i := 0; i < len(word); i++ {
		switch {
		case !isDigit(word[i]):
			b.WriteByte(word[i])
		case i == 0 || !isDigit(word[i-1]):
			b.WriteString("{n}")
		}
	}
}

// wordLength is the number of letters and digits at the start of a text.
func wordLength(text string) int {
	n := 0
	for n < len(text) && (isDigit(text[n]) || text[n]|0x20 >= 'a' && text[n]|0x20 <= 'z') {
		n++
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

const uuidLength = 36

// isUUID reports whether a text starts with a UUID.
func isUUID(text string) bool {
	if len(text) < uuidLength || wordLength(text[uuidLength:]) > 0 {
		return false
	}
	for i := range uuidLength {
		c := text[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if c != '-' {
				return false
			}
		} else if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
			return false
		}
	}
	return true
}
