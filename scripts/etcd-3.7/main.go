// etcd 3.7, which no package has: the server's own main (`server/main.go` of github.com/etcd-io/etcd), from the Go module proxy.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
