// Follows a prefix of an etcd with etcd's own cache, and prints each complete state: go-etcd-cache
// URL PREFIX
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"go.etcd.io/etcd/cache/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

type state struct {
	Revision int64             `json:"revision"`
	Lists    int               `json:"lists"`
	Keys     map[string][]byte `json:"keys"`
}

func main() {
	ctx, output := context.Background(), json.NewEncoder(os.Stdout)
	// the cache itself prints errors
	os.Stdout = os.Stderr
	client, err := clientv3.New(clientv3.Config{Endpoints: os.Args[1:2], DialTimeout: 30 * time.Second, Logger: zap.NewNop()})
	must(err)
	prefixCache, err := cache.New(client, os.Args[2])
	must(err)
	// the cache lists only once, unless the revisions that it missed were compacted
	for lists := 1; ; lists++ {
		must(prefixCache.WaitReady(ctx))
		events := prefixCache.Watch(ctx, os.Args[2], clientv3.WithPrefix(), clientv3.WithProgressNotify())
		for response, isOpen := (clientv3.WatchResponse{}), true; isOpen; response, isOpen = <-events {
			// Read the cache without waiting for the server's newest revision: if that revision changed
			// none of its keys, the cache would wait in vain (`broadcastProgressLocked` skips progress
			// notifications at the revision where a watch resumes).
			if last := len(response.Events) - 1; last >= 0 {
				must(prefixCache.WaitForRevision(ctx, response.Events[last].Kv.ModRevision))
			}
			answer, err := prefixCache.Get(ctx, os.Args[2], clientv3.WithPrefix(), clientv3.WithSerializable())
			must(err)
			keys := map[string][]byte{}
			for _, kv := range answer.Kvs {
				keys[string(kv.Key)] = kv.Value
			}
			must(output.Encode(state{Revision: answer.Header.Revision, Lists: lists, Keys: keys}))
		}
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
