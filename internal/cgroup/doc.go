//go:build !linux

// Package cgroup is for Linux alone.
package cgroup
