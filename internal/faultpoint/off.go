//go:build !faultpoint

// Package faultpoint names the places at which tests end or stop a process,
// so that a crash can be put exactly between two steps. A normal build holds
// none of it: Reach is empty and compiled away. Tests build the program with
// the tag faultpoint and name a place in FAULTPOINT.
package faultpoint

// Reach marks a place. It does nothing in this build.
func Reach(string) {}
