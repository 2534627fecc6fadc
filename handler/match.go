package handler

import (
	"net/http"
	"strconv"
	"strings"

	"flashsale/order"
)

// ifMatch reads the If-Match header as RFC 9110 spells it: which versions of an
// item a change is meant for. Weak tags match none, and neither do tags that are
// no version.
func ifMatch(h http.Header) (m order.Match, stated bool, err error) {
	values, stated := h["If-Match"]
	if !stated {
		return nil, false, nil
	}
	list := strings.Join(values, ",")
	if strings.Trim(list, " \t") == "*" {
		return nil, true, nil
	}
	m = order.Match{}
	tags := 0
	for list = strings.TrimLeft(list, " \t,"); list != ""; list = strings.TrimLeft(list, " \t,") {
		opaque, weak := strings.CutPrefix(list, "W/")
		tag, after, ok := cutTag(opaque)
		if !ok {
			return nil, true, problemMatchInvalid
		}
		tags++
		if version, err := strconv.ParseInt(tag, 10, 64); err == nil && !weak && strconv.FormatInt(version, 10) == tag {
			m = append(m, version)
		}
		list = strings.TrimLeft(after, " \t")
		if list != "" && list[0] != ',' {
			return nil, true, problemMatchInvalid
		}
	}
	if tags == 0 {
		return nil, true, problemMatchInvalid
	}
	return m, true, nil
}

// cutTag takes an opaque tag in quotes from the front of text.
func cutTag(text string) (tag, after string, ok bool) {
	if text == "" || text[0] != '"' {
		return "", "", false
	}
	tag, after, ok = strings.Cut(text[1:], `"`)
	for i := range len(tag) {
		if tag[i] < '!' || tag[i] == 0x7f {
			return "", "", false
		}
	}
	return tag, after, ok
}
