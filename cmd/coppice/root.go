package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

const about = `Coppice runs a message pipeline whose handlers it need not trust. Each handler runs in a worker process; one that
misbehaves is cut down with its whole process tree, proved gone, and grown again. No message is lost.

  coppice demo                      see it work, with data of its own
  coppice init feed                 write a folder with a configuration and a handler
  coppice check --config feed       prove the wiring
  coppice serve --config feed       run it
  coppice send --to HOST:PORT FILE  feed it messages
  coppice messages --config feed    see what became of them`

const exits = `Exit statuses of all verbs:

  0    all is well
  1    the verb ran and found something wrong: a bad configuration, a message
       that was not taken, a message that ended in ERROR in the demo's books
  2    wrong usage: unknown verb or flag, missing argument
  129  ended by HUP, 130 by INT (Ctrl-C), 143 by TERM before the work was done;
       serve and demo --keep are meant to be ended so, and then exit with 0

A first signal stops in good order; a second one ends the program at once, and
its workers with it.`

func rootCommand(io stdio) *cobra.Command {
	root := &cobra.Command{
		Use:           "coppice",
		Short:         "A message pipeline that runs user code it need not trust",
		Long:          about,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
	}
	verb(root, func(cmd *cobra.Command, _ []string) error {
		if err := cmd.Help(); err != nil {
			return err
		}
		return &statusError{code: exitUsage}
	})
	root.SetIn(io.in)
	root.SetOut(io.out)
	root.SetErr(io.err)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(demoCommand(io), initCommand(io), checkCommand(io), serveCommand(io), sendCommand(io), messagesCommand(io),
		showCommand(io), versionCommand(io), demoWorkerCommand(),
		&cobra.Command{Use: "exit", Short: "What the exit statuses mean", Long: exits})
	return root
}

func versionCommand(io stdio) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return verb(cmd, func(*cobra.Command, []string) error {
		v := version()
		if asJSON {
			return printJSON(io.out, v)
		}
		_, err := fmt.Fprintf(io.out, "coppice %s %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch)
		return err
	})
}

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

// version is what the build recorded: a tag for an installed program, "devel" for one built from a checkout.
func version() versionInfo {
	v := versionInfo{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}
