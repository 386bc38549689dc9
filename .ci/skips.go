// Command skips reads the output of `go test -json`, prints it as go test would, and holds the skipped tests against a list
// of those that this place has to skip. It fails if a test was skipped that is not on the list or for want of something
// else, if one of the list was not skipped, and if a test that was skipped names nothing that is missing.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	expect := flag.String("expect", "", "file of tests that are skipped here, a line each: package/Test/sub: capability, where * is anything")
	names := flag.Bool("list", false, "print the names of the tests that passed")
	flag.Parse()
	expected, err := list(*expect)
	if err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(2)
	}
	var passed, failed int
	var skipped []string
	broken := false
	output := map[string][]string{}
	ran := map[string][]string{} // package -> tests that passed
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e struct{ Action, Package, Test, Output, ImportPath string }
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			fmt.Println(in.Text())
			continue
		}
		name := strings.TrimPrefix(strings.TrimPrefix(e.Package, "coppice.dev/coppice"), "/") + "/" + e.Test
		switch {
		case e.Action == "build-output":
			fmt.Print(e.Output)
		case e.Action == "output" && e.Test == "":
			fmt.Print(e.Output)
		case e.Action == "output":
			output[name] = append(output[name], e.Output)
		case e.Test == "":
			broken = broken || e.Action == "fail" || e.Action == "build-fail"
		case e.Action == "pass":
			passed++
			if !strings.Contains(e.Test, "/") {
				ran[e.Package] = append(ran[e.Package], e.Test)
			}
			delete(output, name)
		case e.Action == "fail":
			failed++
			fmt.Print(strings.Join(output[name], ""))
		case e.Action == "skip":
			skipped = append(skipped, name)
		}
	}
	if err := in.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(2)
	}
	wrong := judge(skipped, output, expected)
	if *names {
		for _, pkg := range slices.Sorted(maps.Keys(ran)) {
			fmt.Println(pkg+":", strings.Join(ran[pkg], " "))
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, len(skipped))
	if failed > 0 || broken || wrong > 0 || passed == 0 {
		os.Exit(1)
	}
}

// skip is a line of the list.
type skip struct {
	line       string
	name       *regexp.Regexp
	capability string
	occurred   bool
}

// missing is how a test says what it is skipped for.
var missing = regexp.MustCompile(`(?m): missing: ([^\n]+)`)

// judge prints what is skipped, and what is wrong with it; it returns how much that is.
func judge(skipped []string, output map[string][]string, expected []*skip) (wrong int) {
	for _, name := range skipped {
		said := missing.FindStringSubmatch(strings.Join(output[name], ""))
		if said == nil {
			fmt.Printf("skipped, and does not say what is missing: %s\n%s", name, strings.Join(output[name], ""))
			wrong++
			continue
		}
		at := slices.IndexFunc(expected, func(e *skip) bool { return e.name.MatchString(name) && strings.HasPrefix(said[1], e.capability) })
		if at < 0 {
			fmt.Printf("skipped, and not expected to be: %s: missing: %s\n", name, said[1])
			wrong++
			continue
		}
		expected[at].occurred = true
	}
	for _, e := range expected {
		if !e.occurred {
			fmt.Printf("expected to be skipped, and was not: %s\n", e.line)
			wrong++
			continue
		}
		fmt.Printf("skipped as expected: %s\n", e.line)
	}
	return wrong
}

func list(path string) ([]*skip, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []*skip
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, capability, ok := strings.Cut(line, ": ")
		if !ok || capability == "" {
			return nil, fmt.Errorf("%s: %q is not test: capability", path, line)
		}
		re := strings.ReplaceAll(regexp.QuoteMeta(name), `\*`, ".*")
		out = append(out, &skip{line: line, name: regexp.MustCompile("^" + re + "$"), capability: capability})
	}
	return out, nil
}
