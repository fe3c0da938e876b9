// Command apparmor-profile loads the default AppArmor profile of a container runtime into the
// kernel, or prints its text, by the packages that the runtimes themselves use for that. Both
// packages read /etc/apparmor.d and run apparmor_parser.
//
//	apparmor-profile load  containerd|cri-o NAME
//	apparmor-profile print containerd|cri-o NAME
package main

import (
	"errors"
	"fmt"
	"os"

	containerd "github.com/containerd/containerd/v2/contrib/apparmor"
	crio "go.podman.io/common/pkg/apparmor"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "apparmor-profile:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: apparmor-profile load|print containerd|cri-o NAME")
	}
	command, runtime, name := args[0], args[1], args[2]
	switch command + " " + runtime {
	case "load containerd":
		return containerd.LoadDefaultProfile(name)
	case "load cri-o":
		return crio.InstallDefault(name)
	case "print containerd":
		text, err := containerd.DumpDefaultProfile(name)
		fmt.Print(text)
		return err
	case "print cri-o":
		text, err := crio.DefaultContent(name)
		fmt.Print(string(text))
		return err
	}
	return fmt.Errorf("unknown command: %s %s", command, runtime)
}
