// Follows a prefix of an etcd with Cilium's own client, as agents do, and prints each complete
// state: go-cilium URL PREFIX
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"

	"github.com/cilium/cilium/pkg/kvstore"
)

type state struct {
	Lists int               `json:"lists"`
	Keys  map[string][]byte `json:"keys"`
}

func main() {
	ctx, logger := context.Background(), slog.New(slog.NewTextHandler(os.Stderr, nil))
	// options that an agent sets for a remote cluster's client
	// (pkg/clustermesh/common/remote_cluster.go)
	extra := kvstore.ExtraOptions{NoLockQuorumCheck: true, NoEndpointStatusChecks: true, ClusterName: "home"}
	client, failed := kvstore.NewClient(ctx, logger, kvstore.EtcdBackendName, map[string]string{kvstore.EtcdAddrOption: os.Args[1]}, extra)
	if err := <-failed; err != nil {
		panic(err)
	}
	state, isListed := state{Keys: map[string][]byte{}}, false
	for event := range client.ListAndWatch(ctx, os.Args[2]) {
		switch event.Typ {
		case kvstore.EventTypeCreate, kvstore.EventTypeModify:
			state.Keys[event.Key] = event.Value
		case kvstore.EventTypeDelete:
			delete(state.Keys, event.Key)
		case kvstore.EventTypeListDone:
			state.Lists++
			isListed = true
		}
		if isListed {
			if err := json.NewEncoder(os.Stdout).Encode(state); err != nil {
				panic(err)
			}
		}
	}
}
