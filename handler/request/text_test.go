package request

import (
	"testing"
)

// A required text has more than spaces: the name of an item is the text of its links.
func TestCheckText_Blank(t *testing.T) {
	t.Parallel()
	for _, text := range []string{" ", "   ", "\u00a0", "\u3000 \u2003"} {
		if err := CheckText("name", text, 1, 200, false); err == nil {
			t.Errorf("%+q is taken", text)
		}
		if err := CheckText("description", text, 0, 200, true); err != nil {
			t.Errorf("%+q, not required: %v", text, err)
		}
	}
	if err := CheckText("name", " x ", 1, 200, false); err != nil {
		t.Error(err)
	}
}

func TestHiddenRune(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "Plain text, 100 %", "Ünïcödé – ½ € ©", "日本語　全角", "مرحبا بالعالم", "ελληνικά", "русский", "한국어", "x\u00a0y",
		"می\u200cخواهم",               // Persian: a letter that must not join
		"क्\u200dष", "ന്\u200d\u0d31", // scripts of India: half forms
		"👩\u200d🚀", "👩🏽\u200d🚀", "👨\u200d👩\u200d👧\u200d👦", "🏳\ufe0f\u200d🌈", "❤\ufe0f\u200d🔥", "1\ufe0f\u20e3", "❤\ufe0f",
		"葛\U000e0100",         // an ideograph's variant
		"\u0600١٢", "\u06dd١", // visible signs of Arabic
	} {
		if r, hidden := hiddenRune(text, false); hidden {
			t.Errorf("%q is refused for %U", text, r)
		}
	}
	for _, bad := range []rune{
		0, 7, '\n', '\r', '\t', 0x1b, 0x7f, 0x80, 0x85, 0x9f, // controls
		0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069, 0x200e, 0x200f, 0x061c, // direction
		0x200b, 0x200c, 0x200d, 0x2060, 0xfeff, 0x00ad, 0x180e, 0x034f, 0x115f, 0x1160, 0x17b4, 0x3164, 0xffa0, // invisible
		0x2061, 0x2064, 0x206a, 0x206f, 0xfff9, 0xfffb, 0x1d173, 0xe0001, 0xe0041, 0xe007f, 0x2065, 0xfff0, // format
		0x2028, 0x2029, // separators
	} {
		for _, text := range []string{string(bad), "a" + string(bad) + "b", "Sale " + string(bad), string(bad) + " Sale"} {
			if got, hidden := hiddenRune(text, false); !hidden || got != bad {
				t.Errorf("%+q: %U, %t; want %U", text, got, hidden, bad)
			}
		}
		breaks := bad == '\n' || bad == '\r' || bad == '\t'
		if _, hidden := hiddenRune("a"+string(bad)+"b", true); hidden == breaks {
			t.Errorf("%U in a text of lines: %t", bad, hidden)
		}
	}
	for _, text := range []string{
		"می\u200c", "\u200cمی", "می\u200c خواهم", "می\u200c\u200cخواهم", "می\u200d\u200cخواهم", // joiners without effect
		"p\u200dhone", "é\u200dé", "ж\u200dж", "α\u200cα", "1\u200d2", "a\u200dب", "ب\u200da",
		"\ufe0f", "a \ufe0f", "❤\ufe0f\ufe0f", "❤\ufe0e\ufe0f", "葛\U000e0100\U000e0101", "\n\ufe0f", "\u3000\ufe0f", // selectors without effect
	} {
		if _, hidden := hiddenRune(text, true); !hidden {
			t.Errorf("%+q is taken", text)
		}
	}
}
