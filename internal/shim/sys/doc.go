//go:build !linux

// Package sys is for Linux alone.
package sys
