// etcd 3.6, which is in no package repository. This is the server's own main (`server/main.go` of
// github.com/etcd-io/etcd), built from the Go module proxy.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
