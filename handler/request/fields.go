package request

import (
	"strings"

	"flashsale/handler/problem"
	"flashsale/handler/strictjson"
)

// Fields reads the members of a body by name, and keeps the first fault. A syntax error
// precedes a fault of a field, an unknown field precedes a wrong type, and a wrong type
// precedes a missing field.
type Fields struct {
	values  map[string]strictjson.Value
	known   map[string]bool
	hints   map[string]string // the fields that were probably meant, by the unknown name
	err     error             // a syntax error
	badType *problem.Problem
	missing *problem.Problem
}

// ReadFields reads the body of a request.
func ReadFields(body []byte) *Fields {
	f := &Fields{values: make(map[string]strictjson.Value), known: make(map[string]bool)}
	r := strictjson.Read(body)
	for r.Next() {
		f.values[string(r.Name())] = r.Value()
	}
	f.err = JSONProblem(&r)
	return f
}

// take returns the member's value if it is present and of the kind.
func (f *Fields) take(name string, kind strictjson.Kind, required bool, want string) (strictjson.Value, bool) {
	f.known[name] = true
	v, present := f.values[name]
	switch {
	case !present && required && f.missing == nil:
		f.missing = ErrFieldMissing.With(name, name+" is required: "+want+".")
	case present && v.Kind() != kind && f.badType == nil:
		f.badType = ErrFieldType.With(name, name+" must be "+want+".")
	}
	return v, present && v.Kind() == kind
}

// Text returns the member's value, or "" if it is missing.
func (f *Fields) Text(name string, required bool) string {
	v, ok := f.take(name, strictjson.String, required, "a string")
	if !ok {
		return ""
	}
	return string(v.Text())
}

// Integer returns the member's value, or fallback if it is missing.
func (f *Fields) Integer(name string, required bool, fallback int64) int64 {
	v, ok := f.take(name, strictjson.Integer, required, "a whole number, without quotes, point or exponent")
	if !ok {
		return fallback
	}
	return v.Int()
}

// OptionalText is like Text, for a member that may also be null, which means the same as
// omitting it.
func (f *Fields) OptionalText(name string) (string, bool) {
	if v, present := f.values[name]; present && v.Kind() == strictjson.Null {
		f.known[name] = true
		return "", false
	}
	return f.Text(name, false), f.Has(name)
}

// TextIfStated is like Text, for a member that may be omitted. Omitting it differs from any
// value.
func (f *Fields) TextIfStated(name string) *string {
	v := f.Text(name, false)
	if !f.Has(name) {
		return nil
	}
	return &v
}

// IntegerIfStated is like Integer, for a member that may be omitted. Omitting it differs from
// any value.
func (f *Fields) IntegerIfStated(name string) *int64 {
	v := f.Integer(name, false, 0)
	if !f.Has(name) {
		return nil
	}
	return &v
}

// Bool returns the member's value, and whether the body has it.
func (f *Fields) Bool(name string, required bool) (value, given bool) {
	v, given := f.take(name, strictjson.Bool, required, "true or false")
	return v.Bool(), given
}

// Strings returns the elements of an array, which may be omitted, and whether the body has it.
func (f *Fields) Strings(name string) (texts []string, given bool) {
	const want = "an array of strings"
	v, given := f.take(name, strictjson.Array, false, want)
	if !given {
		return nil, false
	}
	if !v.Strings(func(text []byte) { texts = append(texts, string(text)) }) && f.badType == nil {
		f.badType = ErrFieldType.With(name, name+" must be "+want+".")
	}
	return texts, true
}

// Know adds a field that the route refuses for a reason of its own, with any value.
func (f *Fields) Know(name string) { f.known[name] = true }

// Suggest adds texts that name the field to use instead of an unknown one.
func (f *Fields) Suggest(hints map[string]string) { f.hints = hints }

// Empty reports whether the body has no members.
func (f *Fields) Empty() bool { return len(f.values) == 0 }

// Has reports whether the body has the member.
func (f *Fields) Has(name string) bool {
	_, present := f.values[name]
	return present
}

// Done returns the body's first fault, once every field has been read.
func (f *Fields) Done() error {
	if f.err != nil {
		return f.err
	}
	if p := f.unknown(); p != nil {
		return p
	}
	if f.badType != nil {
		return f.badType
	}
	if f.missing != nil {
		return f.missing
	}
	return nil
}

// unknown returns the refusal of an unknown field, of several the alphabetically first; nil if
// there is none.
func (f *Fields) unknown() *problem.Problem {
	first := ""
	found := false
	for name := range f.values {
		if !f.known[name] && (!found || name < first) {
			first, found = name, true
		}
	}
	if !found {
		return nil
	}
	p := UnknownField([]byte(first))
	if hint := f.hint(first); hint != "" {
		return p.With(p.Param, "The route takes no field of this name. "+hint)
	}
	return p
}

// hint returns the field to use instead of an unknown one, or "".
func (f *Fields) hint(unknown string) string {
	if hint := f.hints[unknown]; hint != "" {
		return hint
	}
	plain := plainName(unknown)
	for name := range f.known {
		if plainName(name) == plain {
			return "Use " + name + ", in lower case with underscores."
		}
	}
	return ""
}

// plainName is a name in lower case, without underscores and hyphens.
func plainName(name string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(name))
}

// truncate cuts text to at most n bytes at a character boundary.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xC0 == 0x80 {
		n--
	}
	return text[:n]
}

// UnknownField returns the refusal of a field that the route does not take.
func UnknownField(name []byte) *problem.Problem {
	return errUnknownField.With(truncate(string(name), maxParam), "The route takes no field of this name; omit it.")
}
