// Command cni-runtime calls CNI plugins through libcni, as container runtimes do. The tests of the
// agent use it in place of a runtime.
//
//	cni-runtime loaded     DIR        print the network config that a runtime loads, as JSON
//	cni-runtime add        DIR ID...  add the containers with these IDs to the network
//	cni-runtime del        DIR ID...  delete them by the loaded network config, as containerd does
//	cni-runtime del-cached DIR ID...  delete them by the cached network config, as CRI-O does
//
// DIR is the root of a node with etc (network configs), bin (plugins) and var/lib/cni (cache).
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cni-runtime:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: cni-runtime COMMAND DIR [ID...]")
	}
	command, dir := args[0], args[1]
	list, err := loaded(filepath.Join(dir, "etc"))
	if err != nil {
		return err
	}
	if command == "loaded" {
		fmt.Println(string(list.Bytes))
		return nil
	}
	cni := libcni.NewCNIConfigWithCacheDir(
		[]string{filepath.Join(dir, "bin")}, filepath.Join(dir, "var/lib/cni"), nil)
	var failed []error
	for _, id := range args[2:] {
		if err := call(cni, command, list, id); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(failed...)
}

// loaded returns the first network config in name order, which is the one that containerd loads.
func loaded(dir string) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network config in %s", dir)
	}
	sort.Strings(files)
	if strings.HasSuffix(files[0], ".conflist") {
		return libcni.ConfListFromFile(files[0])
	}
	conf, err := libcni.ConfFromFile(files[0])
	if err != nil {
		return nil, err
	}
	return libcni.ConfListFromConf(conf)
}

func call(cni *libcni.CNIConfig, command string, list *libcni.NetworkConfigList, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rt := &libcni.RuntimeConf{
		ContainerID: id,
		NetNS:       "/var/run/netns/" + id,
		IfName:      "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "default"},
			{"K8S_POD_NAME", id},
		},
		CapabilityArgs: map[string]interface{}{
			"io.kubernetes.cri.pod-annotations": map[string]string{"app": "web"},
		},
	}
	switch command {
	case "add":
		_, err := cni.AddNetworkList(ctx, list, rt)
		return err
	case "del":
		return cni.DelNetworkList(ctx, list, rt)
	case "del-cached":
		bytes, cached, err := cni.GetNetworkListCachedConfig(list, rt)
		if err != nil {
			return err
		}
		if bytes == nil {
			return errors.New("is not cached")
		}
		config, err := libcni.ConfListFromBytes(bytes)
		if err != nil {
			return err
		}
		return cni.DelNetworkList(ctx, config, cached)
	}
	return fmt.Errorf("unknown command %s", command)
}
