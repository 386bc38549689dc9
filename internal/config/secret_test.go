package config

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const manyStrings = `version = 1
[store]
path = "var/q.db"
[sandbox]
mode = "subprocess"
level = "group"
python = "python3"
start_timeout = "1s"
[alerts]
command = ["./bin", "arg"]
webhook = "http://emr/"
oldest = "1m"
[inbound.a]
mllp = { listen = ":1", max_message = "1MiB", ack = "original" }
handlers = ["admit", "other"]
[inbound.b]
file = { dir = "in", pattern = "*", poll = "1s", stable = "1s", max_message = "1MiB", after = "move", move_to = "x" }
router = "adt.py:route"
[inbound.c]
mllp = { listen = ":2" }
router = { command = ["./bin", "arg"], name = "route" }
[inbound.d]
http = { listen = ":3", path = "/x", max_message = "1MiB", auth_header = "X-Key: x", peers = ["::1"], tls = { cert = "c", key = "k", client_ca = "a" } }
handlers = ["admit"]
[handler.admit]
run = "adt.py:admit"
to = ["emr", "archive"]
deadline = "1s"
[handler.other]
command = ["./bin", "arg"]
protocol = "wire"
to = []
settings = { s = "x" }
was = ["before", "before-that"]
[outbound.emr]
mllp = { connect = "emr:1", ack_timeout = "1s" }
order = "strict"
retry = { first = "1s", max = "2s", then = "dead_letter" }
[outbound.web]
http = { url = "https://emr/x", method = "PUT", content_type = "x/y", headers = { X-Key = "x" }, timeout = "1s", connection = "per_message", tls = { ca = "a", cert = "c", key = "k", server_name = "emr" } }
[outbound.archive]
file = { dir = "out", name = "{id}" }
`

// TestSecrecy puts each of many values where each string of a configuration is, by way of the environment: no error may
// show it, nor a name that is close to it. Red for every show(n.source) that is changed to show(n.text), and with
// expanded taken out of checkArrays.
func TestSecrecy(t *testing.T) {
	parseGood(t, manyStrings)
	values := regexp.MustCompile(`"[^"]*"`).FindAllStringIndex(manyStrings, -1)
	if len(values) < 59 {
		t.Fatal(len(values))
	}
	failed := 0
	for _, at := range values {
		text := manyStrings[:at[0]] + `"${IT}"` + manyStrings[at[1]:]
		for _, value := range []string{
			"hunter2", "hunter2:99999", ":hunter2", ":7777", "hunter2 x:1", "hunter2:0", "[hunter2", "hunter2[", "hunter2/", "hunter2/x", "hunter2 x",
			"../hunter2.py:x", "/hunter2.py:x", "hunter2.js:x", "hunter2.py:x", "adt.py:2hunter2", "hunter2.py", "testdata:hunter2",
			"{id}{hunter2}", "{id}/hunter2", ".hunter2{id}", "hunter2\x00", "\x00hunter2{id}", "\xffhunter2",
			"7777d", "7777777777777777777777d", "7777TiB", "7777777777777777777TiB", "7777",
			strings.Repeat("hunter2", 20), "archiv", "emrr", "othr", "emr", "admit", "archive", "other", ".", "",
			"http://hunter2:hunter2@emr/", "ftp://hunter2/", "hunter2\r\nX: y", "10.0.0.7777/8",
			"isolated", "exec", "off",
		} {
			_, err := Parse(filepath.Join("testdata", "good", FileName), []byte(text), func(string) (string, bool) { return value, true })
			if err == nil {
				continue
			}
			failed++
			for _, mark := range []string{"hunter2", "7777", "did you mean", `"isolated"`, `"off"`} {
				if strings.Contains(err.Error(), mark) {
					t.Errorf("%s = %q: %v", manyStrings[at[0]:at[1]], value, err)
				}
			}
		}
	}
	if failed < 500 {
		t.Errorf("only %d of these were refused", failed)
	}
}
