// Command skips reads the output of `go test -json`, prints it as go test would, and fails if a test was skipped that is
// not on the list of those which may be.
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
	allow := flag.String("allow", "", "file of tests that may be skipped, a line each: package/Test/sub, where * is anything")
	names := flag.Bool("list", false, "print the names of the tests that passed")
	flag.Parse()
	allowed, err := list(*allow)
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
			fmt.Print(strings.Join(output[name], ""))
		}
	}
	if err := in.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(2)
	}
	unexpected := 0
	for _, name := range skipped {
		if !slices.ContainsFunc(allowed, func(re *regexp.Regexp) bool { return re.MatchString(name) }) {
			fmt.Printf("skipped, and may not be: %s\n", name)
			unexpected++
		}
	}
	if *names {
		for _, pkg := range slices.Sorted(maps.Keys(ran)) {
			fmt.Println(pkg+":", strings.Join(ran[pkg], " "))
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, len(skipped))
	if failed > 0 || broken || unexpected > 0 || passed == 0 {
		os.Exit(1)
	}
}

func list(path string) ([]*regexp.Regexp, error) {
	if path == "" {
		return nil, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []*regexp.Regexp
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			re := strings.ReplaceAll(regexp.QuoteMeta(line), `\*`, ".*")
			out = append(out, regexp.MustCompile("^"+re+"$"))
		}
	}
	return out, nil
}
