//go:build !faultpoint

// Package faultpoint names the places at which tests kill or stop a process, so that they can
// put a crash exactly between two steps. In a normal build Reach is empty and compiled away.
// Tests build the program with the tag faultpoint and set FAULTPOINT to the name of a place.
package faultpoint

// Reach marks a place. It does nothing in this build.
func Reach(string) {}
