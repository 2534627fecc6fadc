package postgres

import "testing"

func TestTranslate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"SELECT 1": "SELECT 1",
		"SELECT ?2, ?12 FROM a WHERE b = ?1 AND c = '?'":                         "SELECT $2, $12 FROM a WHERE b = $1 AND c = '?'",
		"SELECT a FROM b INDEXED BY b_a WHERE a = $1":                            "SELECT a FROM b WHERE a = $1",
		"SELECT a FROM b x NOT INDEXED CROSS JOIN c ON true":                     "SELECT a FROM b x JOIN c ON true",
		"WHERE +status = ?1 AND (+id < 5 OR a + b > +c) ORDER BY +id DESC, +a":   "WHERE status = $1 AND (id < 5 OR a + b > c) ORDER BY id DESC, a",
		"UPDATE a SET b = buyers.b + excluded.b, c = -1 WHERE d = a +1 AND e=+1": "UPDATE a SET b = buyers.b + excluded.b, c = -1 WHERE d = a +1 AND e=+1",
	} {
		for range 2 { // the second from the cache
			if got := Translate(text); got != want {
				t.Errorf("%s\nbecame %s\nwant   %s", text, got, want)
			}
		}
	}
}
