package auth_test

import (
	"errors"
	"fmt"
	"time"

	"flashsale/handler/auth"
)

func ExampleVerifier() {
	secret := []byte("at least thirty-two bytes of secret")
	verifier, err := auth.NewVerifier(auth.Config{Secret: secret})
	if err != nil {
		fmt.Println(err)
		return
	}
	token, err := auth.SignToken(secret, "alice", auth.RoleBuyer, time.Hour, time.Now())
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := verifier.Verify(token)
	fmt.Println(id.Subject, id.Role, err)

	_, err = verifier.Verify(token + "x")
	fmt.Println(errors.Is(err, auth.ErrMalformed) || errors.Is(err, auth.ErrSignature))
	// Output:
	// alice buyer <nil>
	// true
}
