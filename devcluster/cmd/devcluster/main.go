package main

import (
	"context"
	"fmt"
	devcluster "github.com/external-backend/operator/devcluster"
	"os"
	"os/exec"
)

func main() {
	if err := devcluster.Ensure(context.Background(), os.Stderr); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	devcluster.Enter()
	c := exec.Command(os.Args[1], os.Args[2:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}
