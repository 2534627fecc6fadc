// Package check tests the files for deployments in docker, compose and kubernetes: that they are
// valid, and that every command, setting, port, probe and metric in them exists in the program.
// It is a module of its own, so that the service does not depend on the modules that read the files.
package check
