package main

import (
	"context"
	"fmt"
	"net/rpc"
	"os"
	"os/exec"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// pluginWord makes this program the plugin.
const pluginWord = "serve-plugin"

var handshake = plugin.HandshakeConfig{ProtocolVersion: 1, MagicCookieKey: "COPPICE_BENCH", MagicCookieValue: "echo"}

var plugins = plugin.PluginSet{"rpc": rpcPlugin{}, "grpc": grpcPlugin{}}

func servePlugin() {
	protocol := map[string]func([]grpc.ServerOption) *grpc.Server{"grpc": plugin.DefaultGRPCServer}
	kind := os.Getenv("COPPICE_BENCH_PLUGIN")
	plugin.Serve(&plugin.ServeConfig{HandshakeConfig: handshake, Plugins: plugin.PluginSet{kind: plugins[kind]},
		GRPCServer: protocol[kind], Logger: hclog.NewNullLogger()})
}

func (f *far) pluginRPC() (echo, func() error, error)  { return plugged("rpc") }
func (f *far) pluginGRPC() (echo, func() error, error) { return plugged("grpc") }

func plugged(kind string) (echo, func() error, error) {
	cmd := exec.Command("/proc/self/exe", pluginWord)
	cmd.Env = append(os.Environ(), "COPPICE_BENCH_PLUGIN="+kind)
	c := plugin.NewClient(&plugin.ClientConfig{HandshakeConfig: handshake, Plugins: plugins, Cmd: cmd, Logger: hclog.NewNullLogger(),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolNetRPC, plugin.ProtocolGRPC}})
	end := func() error { c.Kill(); return nil }
	protocol, err := c.Client()
	if err != nil {
		c.Kill()
		return nil, nil, err
	}
	raw, err := protocol.Dispense(kind)
	if err != nil {
		c.Kill()
		return nil, nil, err
	}
	e, ok := raw.(echo)
	if !ok {
		c.Kill()
		return nil, nil, fmt.Errorf("a plugin of type %T", raw)
	}
	return e, end, nil
}

type rpcPlugin struct{}

func (rpcPlugin) Server(*plugin.MuxBroker) (any, error) { return rpcEcho{}, nil }

func (rpcPlugin) Client(_ *plugin.MuxBroker, c *rpc.Client) (any, error) {
	return echo(func(body []byte) (answer []byte, err error) {
		err = c.Call("Plugin.Echo", body, &answer)
		return answer, err
	}), nil
}

type rpcEcho struct{}

// Echo is called by net/rpc.
func (rpcEcho) Echo(body []byte, answer *[]byte) error {
	*answer = body
	return nil
}

type grpcPlugin struct{ plugin.NetRPCUnsupportedPlugin }

func (grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	s.RegisterService(&echoService, nil)
	return nil
}

func (grpcPlugin) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return echo(func(body []byte) ([]byte, error) {
		answer := new(wrapperspb.BytesValue)
		err := c.Invoke(ctx, "/coppice.bench.Echo/Echo", wrapperspb.Bytes(body), answer)
		return answer.GetValue(), err
	}), nil
}

// echoService is what protoc would make of a service with one method, from BytesValue to BytesValue.
var echoService = grpc.ServiceDesc{ServiceName: "coppice.bench.Echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
	MethodName: "Echo",
	Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		body := new(wrapperspb.BytesValue)
		return body, decode(body)
	},
}}}
