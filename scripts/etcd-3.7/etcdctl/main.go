// etcdctl 3.7 with its own main (`etcdctl/main.go` of github.com/etcd-io/etcd), built from the Go
// module proxy.
package main

import "go.etcd.io/etcd/etcdctl/v3/ctlv3"

func main() {
	ctlv3.MustStart()
}
