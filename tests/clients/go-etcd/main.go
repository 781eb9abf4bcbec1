// etcd's own client for Go:
//
//	go-etcd URL PREFIX               follows a prefix of an etcd and prints each complete state
//	go-etcd tls-certificates DIR     writes many types of certificates, with a directory per server
//	go-etcd tls-verdict FILE         prints whether the server of a client file is accepted
//
// The first form reads as a careful program does: a list at one revision, page by page, then a
// watch from the next revision, and a new list if that revision was compacted. The events of a
// watch must be in order, with each revision once, and a previous value must be equal to the known
// value.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/mirror"
	"go.uber.org/zap"
)

type state struct {
	Revision int64             `json:"revision"`
	Lists    int               `json:"lists"`
	Previous int               `json:"previous"`
	Keys     map[string][]byte `json:"keys"`
}

func main() {
	switch os.Args[1] {
	case "tls-certificates":
		writeCases(os.Args[2])
	case "tls-verdict":
		printVerdict(os.Args[2])
	default:
		follow(os.Args[1], os.Args[2])
	}
}

func follow(url, prefix string) {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{url},
		DialTimeout:          30 * time.Second,
		DialKeepAliveTime:    time.Second,
		DialKeepAliveTimeout: 5 * time.Second,
		Logger:               zap.NewNop(),
	})
	must(err)
	ctx := clientv3.WithRequireLeader(context.Background())
	ask(ctx, client, url)
	state := state{}
	for {
		state.list(ctx, client, prefix)
		state.follow(ctx, client, prefix)
	}
}

// Requests that a program sends before it trusts an etcd, and requests that are refused.
func ask(ctx context.Context, client *clientv3.Client, url string) {
	status, err := client.Status(ctx, url)
	must(err)
	members, err := client.MemberList(ctx)
	must(err)
	expect(len(members.Members) == 1 && members.Members[0].ID == status.Leader, "one member, which leads: %v and %v", members, status)
	expect(members.Members[0].ClientURLs[0] == url, "%v at %s", members, url)
	expect(client.Sync(ctx) == nil, "the endpoints must be those of the members")
	_, err = client.Put(ctx, "a", "b")
	expect(errors.Is(err, rpctypes.ErrPermissionDenied), "a put: %v", err)
	_, err = client.Get(ctx, "a", clientv3.WithRev(1<<60))
	expect(errors.Is(err, rpctypes.ErrFutureRev), "a future revision: %v", err)
	lease, err := client.Grant(ctx, 900)
	must(err)
	renewal, err := client.KeepAliveOnce(ctx, lease.ID)
	must(err)
	expect(renewal.TTL > 0, "a lease is renewed: %v", renewal)
	transaction := client.Txn(ctx).If(clientv3.Compare(clientv3.Version("a"), "=", 0)).Then(clientv3.OpGet("a"))
	answer, err := transaction.Commit()
	must(err)
	expect(answer.Succeeded && len(answer.Responses) == 1, "a transaction of reads: %v", answer)
}

func (s *state) list(ctx context.Context, client *clientv3.Client, prefix string) {
	first, err := client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	must(err)
	s.Keys = map[string][]byte{}
	s.Revision = first.Header.Revision
	s.Lists++
	// pages of 1,000 keys at one revision
	pages, failed := mirror.NewSyncer(client, prefix, s.Revision).SyncBase(ctx)
	for page := range pages {
		for _, kv := range page.Kvs {
			s.Keys[string(kv.Key)] = kv.Value
		}
	}
	must(<-failed)
	expect(int64(len(s.Keys)) == first.Count, "%d keys in pages, %d were counted", len(s.Keys), first.Count)
	stream, err := client.GetStream(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(s.Revision))
	must(err)
	whole, err := clientv3.GetStreamToGetResponse(stream)
	must(err)
	expect(len(whole.Kvs) == len(s.Keys), "%d keys in a stream, %d in pages", len(whole.Kvs), len(s.Keys))
	for _, kv := range whole.Kvs {
		expect(string(s.Keys[string(kv.Key)]) == string(kv.Value), "%s in a stream", kv.Key)
	}
	s.print()
}

func (s *state) follow(ctx context.Context, client *clientv3.Client, prefix string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithProgressNotify(), clientv3.WithRev(s.Revision + 1)}
	for answer := range client.Watch(ctx, prefix, options...) {
		if answer.CompactRevision != 0 {
			return
		}
		must(answer.Err())
		expect(answer.Header.Revision >= s.Revision, "progress from %d to %d", s.Revision, answer.Header.Revision)
		for _, event := range answer.Events {
			s.apply(event)
			expect(event.Kv.ModRevision <= answer.Header.Revision, "%v is ahead of its answer", event)
		}
		s.Revision = answer.Header.Revision
		s.print()
	}
	panic("a watch ended without an error")
}

func (s *state) apply(event *clientv3.Event) {
	key := string(event.Kv.Key)
	known, isKnown := s.Keys[key]
	expect(event.Kv.ModRevision > s.Revision, "%v again, at %d", event, s.Revision)
	s.Revision = event.Kv.ModRevision
	if event.PrevKv != nil {
		s.Previous++
		expect(isKnown && string(known) == string(event.PrevKv.Value), "before %v the value was %q", event, known)
	}
	if event.Type == mvccpb.Event_DELETE {
		delete(s.Keys, key)
	} else {
		expect(event.PrevKv == nil || !event.IsCreate(), "%v creates a key that existed before", event)
		s.Keys[key] = event.Kv.Value
	}
}

func (s *state) print() { must(json.NewEncoder(os.Stdout).Encode(s)) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(holds bool, what string, values ...any) {
	if !holds {
		panic(fmt.Sprintf(what, values...))
	}
}
