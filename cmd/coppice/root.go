package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

const about = `Coppice runs a message pipeline whose handlers it need not trust. Each handler runs in a worker process; one that
misbehaves is cut down with its whole process tree, proved gone, and grown again. No message is lost.

  coppice demo                      see it work, with data of its own
  coppice doctor                    find out what this host can enforce
  coppice init feed                 write a folder with a configuration and a handler
  coppice check --config feed       prove the wiring
  coppice test --config feed CASES  try messages with its code, and send nothing
  coppice serve --config feed       run it
  coppice send --to HOST:PORT FILE  feed it messages
  coppice messages --config feed    see what became of them
  coppice lanes --config feed       see what waits, and what is held
  coppice replay --config feed ID   make a new attempt of what failed
  coppice explain --config feed     why a worker was cut

  coppice run -- CMD ARG...         timeout(1) that leaves nothing behind`

const exits = `Exit statuses of all verbs:

  0    all is well
  1    the verb ran and found something wrong: a bad configuration, a message
       that was not taken, a demonstration whose books do not balance
  2    wrong usage: unknown verb or flag, missing argument
  129  ended by HUP, 130 by INT (Ctrl-C), 143 by TERM before the work was done;
       serve and demo --keep are meant to be ended so, and then exit with 0

run has those of timeout(1), since any other may be its command's:
see coppice run --help.

A first signal stops in good order; a second one ends the program at once, and
its workers with it.`

func rootCommand(io stdio) *cobra.Command {
	root := &cobra.Command{
		Use:           "coppice",
		Short:         "A message pipeline that runs user code it need not trust",
		Long:          about,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version().Version,
	}
	verb(root, func(cmd *cobra.Command, _ []string) error {
		cmd.SetOut(io.err)
		if err := cmd.Help(); err != nil {
			return err
		}
		return &statusError{code: exitUsage}
	})
	root.SetIn(io.in)
	root.SetOut(io.out)
	root.SetErr(io.err)
	root.SetVersionTemplate("coppice {{.Version}}\n")
	root.SetHelpCommand(helpCommand())
	root.AddCommand(demoCommand(io), initCommand(io), checkCommand(io), serveCommand(io), sendCommand(io), testCommand(io), messagesCommand(io),
		showCommand(io), lanesCommand(io), deadLettersCommand(io), replayCommand(io), dismissCommand(io), resubmitCommand(io), holdCommand(io), releaseCommand(io),
		reloadCommand(io), purgeCommand(io), explainCommand(io), runCommand(io), doctorCommand(io), versionCommand(io), demoWorkerCommand(),
		doctorChildCommand(),
		&cobra.Command{Use: "exit", Short: "What the exit statuses mean", Long: exits})
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "completion" {
			verb(cmd, func(*cobra.Command, []string) error {
				return usage("completion needs a shell: bash, zsh, fish or powershell")
			})
		}
	}
	return root
}

// helpCommand is cobra's, except that help about nothing is wrong usage.
func helpCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "help [VERB]", Short: "Help about a verb"}
	return verb(cmd, func(cmd *cobra.Command, args []string) error {
		about, rest, err := cmd.Root().Find(args)
		if err != nil || len(rest) > 0 {
			return usage("there is no help about %q", strings.Join(args, " "))
		}
		about.InitDefaultHelpFlag()
		return about.Help()
	})
}

// takes checks how many arguments a verb gets; what names them.
func takes(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return fmt.Errorf("%s needs %s", cmd.Name(), what)
		case most == 0 && len(args) > 0 && cmd.Flags().Lookup("config") != nil:
			return fmt.Errorf("%s takes no arguments, and got %q\n  hint: name the folder with --config %s", cmd.Name(), args[0],
				shellWord(printable(args[0])))
		case most == 0 && len(args) > 0:
			return fmt.Errorf("%s takes no arguments, and got %q", cmd.Name(), args[0])
		case len(args) > most:
			return fmt.Errorf("%s takes %s, and got %d arguments", cmd.Name(), what, len(args))
		}
		return nil
	}
}

// folders lets a shell complete an argument to a folder.
func folders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// words lets a shell complete a flag to one of a few.
func words(cmd *cobra.Command, flag string, of ...string) {
	// an error only for a flag that is not there
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
}

func versionCommand(io stdio) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: takes(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions}
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
