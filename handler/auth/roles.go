package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"flashsale/handler/strictjson"
)

// DefaultRoleClaim is the claim with the role unless configured otherwise.
const DefaultRoleClaim = "role"

// DefaultSubjectClaim is the claim with the subject unless configured otherwise.
const DefaultSubjectClaim = "sub"

// reservedClaims have other meanings: they cannot contain the role or the subject.
var reservedClaims = []string{"aud", "iss", "exp", "nbf", "iat", "jti"}

// ValidSubjectClaim reports whether a claim of this name can hold the subject.
func ValidSubjectClaim(name string) bool { return name != "" && !slices.Contains(reservedClaims, name) }

// maxClaimDepth bounds the names in the path of a role claim.
const maxClaimDepth = 8

// anyValue on the right of a mapping means every value without a mapping, and a missing claim.
const anyValue = "*"

// Roles maps a claim of the tokens to a Role.
type Roles struct {
	path     []string        // of the claim, from the outermost name
	values   map[string]Role // the role of each value of the claim
	written  map[Role]string // the value that signed tokens carry, by role
	fallback Role            // of tokens whose claim has no mapped role; empty: they are refused
	single   bool            // the claim must be a single string
}

// contractRoles reads the claim `role`, which contains the role itself.
var contractRoles = &Roles{
	path:   []string{DefaultRoleClaim},
	single: true,
	values: map[string]Role{
		string(RoleBuyer): RoleBuyer, string(RoleAdmin): RoleAdmin, string(RoleService): RoleService,
	},
	written: map[Role]string{
		RoleBuyer: string(RoleBuyer), RoleAdmin: string(RoleAdmin), RoleService: string(RoleService),
	},
}

// NewRoles returns the mapping of a claim's values.
//
// The claim is a name, or a path with dots between the names of nested claims, such as
// realm_access.roles. A name with :// in it is not split, and \. is a dot within a name.
//
// Each mapping is ROLE=VALUE. A role may have several values. buyer=* makes every token
// a buyer's that would otherwise be refused for its role. Without mappings the values
// are the roles' own names.
//
// The claim is a string, a string of values with spaces between them, or a list of
// strings. With several roles admin wins over service, and service over buyer. Only the
// default claim without mappings is stricter: it is one string with one role.
func NewRoles(claim string, mappings []string) (*Roles, error) {
	path, err := claimPath(claim)
	if err != nil {
		return nil, err
	}
	r := &Roles{path: path, values: contractRoles.values, written: contractRoles.written}
	if len(mappings) == 0 {
		r.single = claim == DefaultRoleClaim
		return r, nil
	}
	r.values, r.written = make(map[string]Role), make(map[Role]string)
	for _, m := range mappings {
		if err := r.add(m); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Roles) add(mapping string) error {
	mapping = strings.TrimSpace(mapping) // lists are often written with a space after the comma
	name, value, found := strings.Cut(mapping, "=")
	role := Role(name)
	switch {
	case !found:
		return fmt.Errorf("%q is not ROLE=VALUE", mapping)
	case !role.Valid():
		return fmt.Errorf("%q names no role: the roles are buyer, admin and service", mapping)
	case value == "" || strings.TrimSpace(value) != value || strings.Contains(value, ","):
		return fmt.Errorf("%q has an empty value, or one with a comma or with spaces around it", mapping)
	case value == anyValue && role != RoleBuyer:
		return fmt.Errorf("%q would make every token %s: only buyer=* is allowed", mapping, name)
	case value == anyValue:
		r.fallback = role
		return nil
	}
	if other, taken := r.values[value]; taken && other != role {
		return fmt.Errorf("%q is mapped to %s and to %s", value, other, role)
	}
	r.values[value] = role
	if r.written[role] == "" {
		r.written[role] = value
	}
	return nil
}

// claimPath splits the path of a claim into names.
func claimPath(claim string) ([]string, error) {
	path := []string{claim}
	if !strings.Contains(claim, "://") {
		const dot = "\x00"
		path = strings.Split(strings.ReplaceAll(claim, `\.`, dot), ".")
		for i := range path {
			path[i] = strings.ReplaceAll(path[i], dot, ".")
		}
	}
	switch {
	case slices.Contains(path, ""):
		return nil, errors.New("it has an empty name")
	case len(path) > maxClaimDepth:
		return nil, fmt.Errorf("it has more than %d names", maxClaimDepth)
	case path[0] == DefaultSubjectClaim || slices.Contains(reservedClaims, path[0]):
		return nil, fmt.Errorf("%s is a registered claim and cannot hold the role", path[0])
	}
	return path, nil
}

// read returns the role for the value of the outermost claim; "" if it grants none. ok is false
// if the claim is malformed.
func (r *Roles) read(v strictjson.Value) (role Role, ok bool) {
	for _, name := range r.path[1:] {
		inner, present, ok := member(v, name)
		if !ok || !present {
			return "", ok
		}
		v = inner
	}
	grant := func(text []byte) {
		if one := r.values[string(text)]; rank(one) > rank(role) {
			role = one
		}
	}
	if v.Kind() != strictjson.String {
		if r.single {
			return "", false
		}
		ok = v.Strings(grant) // which sets role
		return role, ok
	}
	grant(v.Text())
	if role == "" && !r.single {
		for word := range strings.FieldsSeq(string(v.Text())) {
			grant([]byte(word))
		}
	}
	return role, true
}

// rank orders the roles for tokens that name several.
func rank(r Role) int { return slices.Index([]Role{RoleBuyer, RoleService, RoleAdmin}, r) }

// member returns a member of an object. ok is false if v is not a valid object.
func member(v strictjson.Value, name string) (inner strictjson.Value, present, ok bool) {
	r := strictjson.Read(v.Raw())
	for r.Next() {
		if string(r.Name()) == name {
			inner, present = r.Value(), true
		}
	}
	return inner, present, r.Err() == nil
}

// claim returns the claim of a signed token for the role, by its outermost name; nil if the
// role needs none.
func (r *Roles) claim(role Role) (map[string]any, error) {
	value, known := r.written[role]
	switch {
	case !known && role == r.fallback:
		return nil, nil
	case !known:
		return nil, fmt.Errorf("auth: sign token: %w %s", ErrUnmapped, role)
	}
	var inner any = []string{value}
	if r.single {
		inner = value
	}
	for _, name := range slices.Backward(r.path[1:]) {
		inner = map[string]any{name: inner}
	}
	return map[string]any{r.path[0]: inner}, nil
}
