package confine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"coppice.dev/coppice/internal/cgroup"
	"golang.org/x/sys/unix"
)

func cgroupHere() (string, error) {
	p, err := cgroup.Own()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(p.Dir, "cgroup.procs")); err != nil {
		return "", fmt.Errorf("its own cgroup %s is hidden: %w", p.Dir, errnoOf(err)) // another mount lies over it
	}
	kind := "v2 alone"
	if len(p.V1) > 0 {
		kind = fmt.Sprintf("v2 beside version 1, which holds %s", strings.Join(p.V1, ", "))
	}
	return fmt.Sprintf("%s, mounted at %s; own cgroup %s", kind, p.Mount, p.Path), nil
}

// cgroupControllers looks for those that bound a tree.
func cgroupControllers() (string, error) {
	p, err := cgroup.Own()
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(filepath.Join(p.Dir, "cgroup.controllers"))
	if err != nil {
		return "", err
	}
	have := strings.Fields(string(b))
	var missing, held []string
	for _, c := range []string{"memory", "pids"} {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
			if slices.Contains(p.V1, c) {
				held = append(held, c)
			}
		}
	}
	switch {
	case len(held) > 0:
		return "", fmt.Errorf("no %s in v2: version 1 holds %s", strings.Join(missing, ", "), strings.Join(held, ", "))
	case len(missing) > 0:
		return "", fmt.Errorf("no %s in %s", strings.Join(missing, ", "), p.Dir)
	}
	return strings.Join(have, ", "), nil
}

// leafMark begins what is a leaf's own in its name. The rest of it is such that package tree sweeps a leaf whose maker was
// killed, as it does its own.
const leafMark = "probe"

func leafName() (string, error) {
	me, err := cgroup.EngineName()
	if err != nil {
		return "", err
	}
	return cgroup.LeafPrefix + me + "-" + leafMark, nil
}

// inCgroupLeaf is for a child that is born in a new cgroup below our own, and dies of its cgroup.kill.
func inCgroupLeaf() (*trial, error) {
	p, err := cgroup.Own()
	if err != nil {
		return nil, err
	}
	name, err := leafName()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.Dir, name)
	if err != nil {
		return nil, fmt.Errorf("make a leaf in %s: %w", p.Dir, errnoOf(err))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the leaf: %w", err), os.Remove(dir))
	}
	return &trial{
		attr: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd},
		look: func() (string, error) { return killLeaf(dir) },
		undo: func() error {
			unix.Close(fd)
			return removeLeaf(dir)
		},
	}, nil
}

// tellCgroup says where the child was born.
func tellCgroup() (string, error) {
	own, err := cgroup.Own()
	if own.Path == "" {
		return "", err
	}
	if strings.Contains(filepath.Base(own.Path), "-"+leafMark) {
		return "a leaf was made, a child born inside", nil
	}
	return "", errors.New("the child was not born in the leaf")
}

func killLeaf(dir string) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0); err != nil {
		return "", fmt.Errorf("write its cgroup.kill: %w", errnoOf(err))
	}
	if err := awaitEmpty(dir); err != nil {
		return "", err
	}
	return " and killed by cgroup.kill", nil
}

// leafPatience bounds the wait for a leaf to be empty, once its only child has been killed or has ended.
const leafPatience = 2 * time.Second

func awaitEmpty(dir string) error {
	for limit := time.Now().Add(leafPatience); ; time.Sleep(time.Millisecond) {
		in, err := cgroup.Populated(dir)
		switch {
		case err != nil || !in:
			return err
		case time.Now().After(limit):
			return fmt.Errorf("the leaf is still populated after %v", leafPatience)
		}
	}
}

func removeLeaf(dir string) error {
	if err := awaitEmpty(dir); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("remove the leaf: %w", err)
	}
	return nil
}

// errnoOf leaves the path away, which the caller's words have.
func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
