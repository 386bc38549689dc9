// Program hookless starts a tree without having the shim's hook.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"coppice.dev/coppice/tree"
)

func main() {
	fmt.Println("main") // once: a second generation would say it too
	if os.Getenv("COPPICE_SHIM") != "" {
		return
	}
	_, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/true", Level: tree.Tracked})
	var no *tree.LevelError
	fmt.Println("no shim:", errors.As(err, &no) && errors.Is(err, tree.ErrNoShim))
	t, err := tree.Start(context.Background(), tree.Spec{Path: "/bin/true"})
	if err != nil {
		fmt.Println(err)
		return
	}
	t.Wait(context.Background())
	fmt.Println(t.Level())
}
