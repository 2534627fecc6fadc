package handler

import "flashsale/handler/strictjson"

// fields reads the members of a body by name, and remembers the first fault.
// A fault of the syntax comes before one of the fields, an unknown field
// before a wrong type, and that before a missing one.
type fields struct {
	values  map[string]strictjson.Value
	known   map[string]bool
	near    nearNames // of fields that the route does not take; nil: none
	err     error     // of the syntax
	badType *problem
	missing *problem
}

func newFields(body []byte) *fields {
	f := &fields{values: make(map[string]strictjson.Value), known: make(map[string]bool)}
	r := strictjson.Read(body)
	for r.Next() {
		f.values[string(r.Name())] = r.Value()
	}
	f.err = r.Err()
	return f
}

// take returns the member's value if it is there and of the kind.
func (f *fields) take(name string, kind strictjson.Kind, required bool, want string) (strictjson.Value, bool) {
	f.known[name] = true
	v, present := f.values[name]
	switch {
	case !present && required && f.missing == nil:
		f.missing = problemFieldMissing.with(name, name+" is required: "+want+".")
	case present && v.Kind() != kind && f.badType == nil:
		f.badType = problemFieldType.with(name, name+" must be "+want+".")
	}
	return v, present && v.Kind() == kind
}

func (f *fields) text(name string, required bool) string {
	v, ok := f.take(name, strictjson.String, required, "a string")
	if !ok {
		return ""
	}
	return string(v.Text())
}

// integer returns the member's value, or usual where it is not there.
func (f *fields) integer(name string, required bool, usual int64) int64 {
	v, ok := f.take(name, strictjson.Integer, required, "a whole number, without quotes, point or exponent")
	if !ok {
		return usual
	}
	return v.Int()
}

// optionalText is text for a member that may also be null, which says the same
// as leaving it out.
func (f *fields) optionalText(name string) (string, bool) {
	if v, present := f.values[name]; present && v.Kind() == strictjson.Null {
		f.known[name] = true
		return "", false
	}
	return f.text(name, false), f.has(name)
}

// textIfStated is text for a member that may be left out, which says something
// else than any value of it.
func (f *fields) textIfStated(name string) *string {
	v := f.text(name, false)
	if !f.has(name) {
		return nil
	}
	return &v
}

// integerIfStated is integer for a member that may be left out, which says
// something else than any value of it.
func (f *fields) integerIfStated(name string) *int64 {
	v := f.integer(name, false, 0)
	if !f.has(name) {
		return nil
	}
	return &v
}

// has reports whether the body has the member.
func (f *fields) has(name string) bool {
	_, present := f.values[name]
	return present
}

// done returns the body's first fault, once every field has been asked for.
func (f *fields) done() error {
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

// unknown returns the refusal of a field that the route does not take, of several the
// first in the alphabet; nil where there is none.
func (f *fields) unknown() *problem {
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
	var fault fieldFault
	fault.unknown([]byte(first))
	if hint := f.near.hint(first, f.known); hint != "" {
		return fault.problem.with(fault.problem.param, "The route takes no field of this name. "+hint)
	}
	return fault.problem
}
