// Process 1: gokrazy's, with the services of this image.
package main

import (
	"log"
	"os/exec"

	"github.com/gokrazy/gokrazy"
	// Its folder has the kernel, which `build` puts beside this program.
	_ "github.com/gokrazy/kernel.amd64"
)

func main() {
	if err := gokrazy.Boot("slipway"); err != nil {
		log.Fatal(err)
	}
	services := []*gokrazy.Service{
		gokrazy.NewService(exec.Command("/gokrazy/dhcp")),
		gokrazy.NewService(exec.Command("/user/about")),
	}
	if err := gokrazy.SuperviseServices(services); err != nil {
		log.Fatal(err)
	}
	select {}
}
