package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"coppice.dev/coppice/internal/confine"
	"coppice.dev/coppice/internal/victim"
	"coppice.dev/coppice/tree"
)

// ChildVerb is the first argument of this program when the doctor has executed it again; the rest is Child's.
const ChildVerb = "doctor-child"

// What a child can be. A leader, a middle and a daemon make a hostile tree: the daemon has been forked twice, each time
// into a session of its own, and holds the tree's pipes. An engine holds such a tree, until it is killed.
const (
	roleProbe  = "probe"  // of the named feature
	roleEngine = "engine" // on the named rung
	roleLeader = "leader"
	roleMiddle = "middle"
	roleDaemon = "daemon"
)

// childLife bounds each child, should even the leash not end it.
const childLife = time.Minute

// argv are the arguments that make such a child of this program.
func argv(role string, args ...string) []string {
	return append([]string{"coppice", ChildVerb, role}, args...)
}

// program is the file to execute for this program again. Its path may be closed to this user, who was given the program by
// another way; /proc still leads there then.
func program() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if _, err := exec.LookPath(exe); err != nil {
		const self = "/proc/self/exe"
		if _, missing := os.Stat(self); missing == nil {
			return self, nil
		}
		return "", err
	}
	return exe, nil
}

// Child is this program when the doctor has executed it again, and returns when it is over. A process of a hostile tree has
// the leash as standard input and the witness as standard output; an engine says on standard output how its start went,
// and has the witness as standard error.
func Child(args []string) error {
	if len(args) < 2 {
		return errors.New("it is executed by coppice doctor, and by nobody else")
	}
	time.AfterFunc(childLife, func() { os.Exit(1) })
	exe, err := program()
	if err != nil {
		return saying(err)
	}
	switch role, token := args[0], args[len(args)-1]; role {
	case roleProbe:
		return confine.ProbeChild(token, os.Stdin, os.Stdout)
	case roleEngine:
		return beEngine(exe, args[1], token)
	case roleLeader:
		middle, err := victim.Orphan(exe, argv(roleMiddle, token), os.Stdin, os.Stdout)
		if err != nil {
			return saying(err)
		}
		// Until it has ended, the daemon is still found below the leader.
		if end, err := middle.Wait(); err != nil || !end.Success() {
			return saying(errors.Join(err, errors.New("no daemon could be started")))
		}
		return stay()
	case roleMiddle:
		_, err := victim.Orphan(exe, argv(roleDaemon, token), os.Stdin, os.Stdout)
		return saying(err)
	case roleDaemon:
		return stay()
	default:
		return fmt.Errorf("no role %q", role)
	}
}

// saying writes an error where the doctor sees it.
func saying(err error) error {
	if err != nil {
		fmt.Println(err)
	}
	return err
}

// stay says that it is there, and stays until the leash ends.
func stay() error {
	if _, err := fmt.Println(readyLine); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// word is what an engine says of its start.
type word struct {
	Error string `json:"error,omitempty"`
}

func beEngine(exe, rung, token string) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	t, err := tree.Start(ctx, hostile(exe, rung, token, os.Stdin, os.Stderr))
	var w word
	if err != nil {
		w.Error = err.Error()
	}
	if err := errors.Join(json.NewEncoder(os.Stdout).Encode(w), err); err != nil {
		return err
	}
	// Until it is killed, or else the leash ends.
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(context.Background(), endPatience)
	defer cancel()
	_, err = t.Kill(ctx, "the doctor is gone")
	return err
}

// hostile is the spec of a hostile tree. It asks for what a worker gets, as far as a rung's guard rests on it.
func hostile(exe, rung, token string, leash, witness *os.File) tree.Spec {
	return tree.Spec{Path: exe, Args: argv(roleLeader, token), Env: confine.Environment(os.Environ(), os.TempDir()),
		Stdin: leash, Stdout: witness, Rung: rung, NewSession: true, NoNewPrivileges: true, DropCapabilities: true}
}
