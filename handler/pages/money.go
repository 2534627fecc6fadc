package pages

import (
	"strconv"
	"strings"
)

// decimals are the currencies whose smallest unit is not a hundredth (ISO 4217).
var decimals = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0, "UYI": 0,
	"VND": 0, "VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3, "CLF": 4, "UYW": 4,
}

// money writes an amount in the currency's smallest unit, such as EUR 129.00.
func money(minor int64, currency string) string {
	digits, ok := decimals[currency]
	if !ok {
		digits = 2
	}
	text := strconv.FormatInt(minor, 10)
	if digits > 0 {
		text = strings.Repeat("0", max(0, digits+1-len(text))) + text
		text = text[:len(text)-digits] + "." + text[len(text)-digits:]
	}
	return currency + " " + text
}
