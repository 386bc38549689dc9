package config

import (
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

// TestNetworkKeys reads each key of the connections over a network, and what they are where they are left out.
func TestNetworkKeys(t *testing.T) {
	cfg := parseGood(t, `
version = 1
[inbound.plain]
http = { listen = ":8080" }
handlers = ["admit"]
[inbound.full.http]
listen = "127.0.0.1:8081"
path = "/hl7/in"
max_message = "1MiB"
auth_header = "Authorization: Bearer ${SECRET}"
peers = ["10.0.0.0/8", "127.0.0.1", "fd00::/8", "::1"]
tls = { cert = "server.crt", key = "/keys/server.key", client_ca = "ca.crt" }
[inbound.full]
handlers = ["admit"]
[inbound.mllp]
mllp = { listen = ":6661", peers = ["192.0.2.7"], tls = { cert = "server.crt", key = "server.key" } }
handlers = ["admit"]
[handler.admit]
run = "adt.py:admit"
to = []
[outbound.plain]
http = { url = "http://127.0.0.1:9/in?to=${EMR_HOST}" }
[outbound.full.http]
url = "https://emr.example"
method = "PUT"
content_type = "application/fhir+json"
headers = { authorization = "Bearer ${SECRET}", X-Site = "a b" }
timeout = "5s"
connection = "per_message"
tls = { ca = "ca.crt", cert = "client.crt", key = "client.key", server_name = "emr" }
[outbound.mllp]
mllp = { connect = "emr:1", connection = "per_message", tls = {} }
`)
	at := func(name string) string { return filepath.Join(cfg.Dir, name) }
	key, err := filepath.Abs("/keys/server.key")
	if err != nil || filepath.VolumeName(key) != "" {
		key = at("/keys/server.key")
	}
	wantIn := []Inbound{
		{Name: "plain", Handlers: []string{"admit"}, HoldAfter: 5, HTTP: &HTTPIn{Listen: ":8080", Path: "/", MaxMessage: 16 << 20}},
		{Name: "full", Handlers: []string{"admit"}, HoldAfter: 5, HTTP: &HTTPIn{Listen: "127.0.0.1:8081", Path: "/hl7/in", MaxMessage: 1 << 20,
			AuthHeader: "Authorization: Bearer " + secret,
			Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("fd00::/8"),
				netip.MustParsePrefix("::1/128")},
			TLS: &TLSIn{Cert: at("server.crt"), Key: key, ClientCA: at("ca.crt")}}},
		{Name: "mllp", Handlers: []string{"admit"}, HoldAfter: 5, MLLP: &MLLPIn{Listen: ":6661", MaxMessage: 16 << 20, Ack: "original",
			Peers: []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}, TLS: &TLSIn{Cert: at("server.crt"), Key: at("server.key")}}},
	}
	retry := defaultRetry()
	wantOut := []Outbound{
		{Name: "plain", Order: "strict", Parallel: 1, Retry: retry, HTTP: &HTTPOut{URL: "http://127.0.0.1:9/in?to=emr.example", Method: "POST",
			ContentType: "application/octet-stream", Headers: map[string]string{}, Timeout: 30 * time.Second, Connection: "persistent"}},
		{Name: "full", Order: "strict", Parallel: 1, Retry: retry, HTTP: &HTTPOut{URL: "https://emr.example", Method: "PUT",
			ContentType: "application/fhir+json", Headers: map[string]string{"Authorization": "Bearer " + secret, "X-Site": "a b"}, Timeout: 5 * time.Second,
			Connection: "per_message", TLS: &TLSOut{CA: at("ca.crt"), Cert: at("client.crt"), Key: at("client.key"), ServerName: "emr"}}},
		{Name: "mllp", Order: "strict", Parallel: 1, Retry: retry, MLLP: &MLLPOut{Connect: "emr:1", AckTimeout: 30 * time.Second, Connection: "per_message", TLS: &TLSOut{}}},
	}
	for i := range wantIn {
		if !reflect.DeepEqual(cfg.Inbounds[i], wantIn[i]) {
			t.Errorf("inbound %s: %+v %+v", wantIn[i].Name, cfg.Inbounds[i].HTTP, cfg.Inbounds[i].MLLP)
		}
	}
	for i := range wantOut {
		if !reflect.DeepEqual(cfg.Outbounds[i], wantOut[i]) {
			t.Errorf("outbound %s: %+v %+v", wantOut[i].Name, cfg.Outbounds[i].HTTP, cfg.Outbounds[i].MLLP)
		}
	}
}
