package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"coppice.dev/coppice/internal/message"
	"coppice.dev/coppice/internal/store"
)

// Client gives orders to an engine that runs. It satisfies Commands; an error keeps its identity, as far as the sentinel
// errors of this package and of package store go.
type Client struct {
	path string
	http *http.Client
}

var _ Commands = (*Client)(nil)

// maxAnswer caps an answer; that of status grows with the number of lanes.
const maxAnswer = 64 << 20

// Dial looks for an engine at a socket's path. ErrNoEngine if nobody listens there, and fs.ErrPermission, both wrapped, if
// this user may not ask. Close what it returns.
func Dial(ctx context.Context, path string) (*Client, error) {
	c := &Client{path: path}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			short, done, err := shorten(c.path)
			if err != nil {
				return nil, err
			}
			defer done()
			return new(net.Dialer).DialContext(ctx, "unix", short)
		},
		DisableCompression: true,
	}}
	conn, err := c.http.Transport.(*http.Transport).DialContext(ctx, "", "")
	switch {
	case err == nil:
		return c, conn.Close()
	case errors.Is(err, fs.ErrPermission), ctx.Err() != nil:
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrNoEngine, err)
}

// Close ends the connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ask gives an order and decodes its answer.
func ask[A any](ctx context.Context, c *Client, order string, question any) (result A, err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return result, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/"+order, bytes.NewReader(body))
	if err != nil {
		return result, err
	}
	resp, err := c.http.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return result, ctx.Err()
		}
		return result, fmt.Errorf("ask the engine: %w", err)
	}
	defer resp.Body.Close()
	d := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer))
	if resp.StatusCode != http.StatusOK {
		var f failure
		if err := d.Decode(&f); err != nil || f.Error == "" {
			return result, fmt.Errorf("the engine answers %s", resp.Status)
		}
		return result, &orderError{text: f.Error, is: kinds[f.Kind]}
	}
	if err := d.Decode(&result); err != nil {
		return result, fmt.Errorf("read the engine's answer: %w", err)
	}
	return result, nil
}

// orderError is an error as the engine worded it.
type orderError struct {
	text string
	is   error
}

func (e *orderError) Error() string { return e.text }

func (e *orderError) Unwrap() error { return e.is }

// Status asks what waits; see Commands.
func (c *Client) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, c, "status", nothing{})
}

// Hold holds a target; see Commands.
func (c *Client) Hold(ctx context.Context, t message.Target, reason string) error {
	_, err := ask[nothing](ctx, c, "hold", holdOrder{t, reason})
	return err
}

// Release ends holds; see Commands.
func (c *Client) Release(ctx context.Context, t message.Target, bury bool) ([]message.Hold, error) {
	return ask[[]message.Hold](ctx, c, "release", releaseOrder{t, bury})
}

// Replay makes a new attempt of what failed; see Commands.
func (c *Client) Replay(ctx context.Context, id message.ID) (message.Replay, error) {
	return ask[message.Replay](ctx, c, "replay", replayOrder{id})
}

// Dismiss takes what failed from the dead letters; see Commands.
func (c *Client) Dismiss(ctx context.Context, id message.ID, reason string) (int64, error) {
	return ask[int64](ctx, c, "dismiss", dismissOrder{id, reason})
}

// Resubmit receives a message again; see Commands.
func (c *Client) Resubmit(ctx context.Context, id message.ID, body []byte) (message.ID, error) {
	return ask[message.ID](ctx, c, "resubmit", resubmitOrder{Message: id, Own: body == nil, Body: body})
}

// Purge takes one step of removing what has ended; see Commands.
func (c *Client) Purge(ctx context.Context, done, dead time.Time) (store.Purged, error) {
	return ask[store.Purged](ctx, c, "purge", purgeOrder{done, dead})
}

// Reload has the engine go on with the configuration of now; see Commands.
func (c *Client) Reload(ctx context.Context) (Reloaded, error) {
	return ask[Reloaded](ctx, c, "reload", nothing{})
}
