package main

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

// template is what init writes; the files in it are real ones, and the tests run them.
//
//go:embed all:template
var template embed.FS

func initCommand(io stdio) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "init DIR",
		Short: "Write a folder with a configuration and a handler that work as they stand",
		Long: `Init writes coppice.toml, a Python handler and a message to try it with into DIR, which it makes. It changes no file that
is there already.`,
		Args: takes(1, 1, "one DIR, which it makes"), ValidArgsFunction: folders,
	}
	return verb(cmd, func(_ *cobra.Command, args []string) error { return initFolder(io, args[0]) })
}

func initFolder(io stdio, dir string) error {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is a file; name a folder", dir)
	}
	content, err := fs.Sub(template, "template")
	if err != nil {
		return err
	}
	names, err := fs.Glob(content, "*")
	if err != nil {
		return err
	}
	// All or nothing: a folder of half old and half new files would not work.
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dir, target(name))); err == nil {
			return fmt.Errorf("%s is there already: init changes no file; choose another folder", filepath.Join(dir, target(name)))
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, name := range names {
		b, err := fs.ReadFile(content, name)
		if err != nil {
			return err
		}
		if err := writeNew(filepath.Join(dir, target(name)), b); err != nil {
			return err
		}
		fmt.Fprintln(io.out, "wrote", filepath.Join(dir, target(name)))
	}
	me, folder := self(), shellWord(dir)
	fmt.Fprintf(io.out, "\nnext:\n  %s check %s\n  %s serve --config %s\n  %s send --config %s %s\n  %s messages --config %s\n",
		me, folder, me, folder, me, folder, shellWord(filepath.Join(dir, "sample.hl7")), me, folder)
	return nil
}

// target is the name of a file of the template in a folder; one that git would obey here goes by another name.
func target(name string) string {
	if name == "gitignore" {
		return ".gitignore"
	}
	return name
}

func writeNew(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
