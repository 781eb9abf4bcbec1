package main

import (
	"context"
	"fmt"
	"math/rand"
	"reflect"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/model"
)

const prefixEnd = "cilium/cache0"

// follower is a client that lists everything and then watches. It resumes over restarts as etcd's
// client does, and lists again if its revision was compacted.
type follower struct {
	client *client.RecordingClient
	prevKV bool
	mutex  sync.Mutex
	values map[string]string
	// revisions of all events
	seen []int64
}

func newFollower(client *client.RecordingClient, prevKV bool) *follower {
	return &follower{client: client, prevKV: prevKV, values: map[string]string{}}
}

func (f *follower) follow(ctx context.Context, random *rand.Rand) error {
	for ctx.Err() == nil {
		listed, err := f.client.Range(ctx, prefix, prefixEnd, 0, 0, false)
		if err != nil {
			// the server may be starting
			time.Sleep(20 * time.Millisecond)
			continue
		}
		f.replace(listed.Kvs)
		last := listed.Header.Revision
		// now and then a new watch continues where the last one ended
		for isCompacted := false; !isCompacted && ctx.Err() == nil; {
			life, cancel := context.WithTimeout(ctx, time.Second+time.Duration(random.Int63n(int64(4*time.Second))))
			for answer := range f.client.Watch(life, prefix, last+1, true, true, f.prevKV) {
				isCompacted = answer.CompactRevision != 0
				if err := answer.Err(); err != nil && !isCompacted {
					cancel()
					return fmt.Errorf("a watch ended: %w", err)
				}
				for _, event := range answer.Events {
					if event.Kv.ModRevision <= last {
						cancel()
						return fmt.Errorf("%s at %d after %d", event.Kv.Key, event.Kv.ModRevision, last)
					}
					last = event.Kv.ModRevision
				}
				f.apply(answer.Events)
				if random.Intn(20) == 0 {
					f.client.RequestProgress(life)
				}
			}
			cancel()
		}
	}
	return nil
}

func (f *follower) replace(kvs []*mvccpb.KeyValue) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.values = map[string]string{}
	for _, kv := range kvs {
		f.values[string(kv.Key)] = string(kv.Value)
	}
}

func (f *follower) apply(events []*clientv3.Event) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, event := range events {
		f.seen = append(f.seen, event.Kv.ModRevision)
		if event.Type == mvccpb.Event_DELETE {
			delete(f.values, string(event.Kv.Key))
		} else {
			f.values[string(event.Kv.Key)] = string(event.Kv.Value)
		}
	}
}

// firstDifference returns the first difference from a state; empty if there is none.
func (f *follower) firstDifference(state map[string]string) string {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for key, value := range state {
		if f.values[key] != value {
			return fmt.Sprintf("%s is %q, not %q", key, f.values[key], value)
		}
	}
	for key := range f.values {
		if _, isThere := state[key]; !isThere {
			return key + " should have been deleted"
		}
	}
	return ""
}

// wander reads at earlier revisions and watches keys and prefixes, from now on or from earlier
// revisions, until the context ends.
func wander(ctx context.Context, client *client.RecordingClient, random *rand.Rand) {
	for ctx.Err() == nil {
		newest, err := client.Range(ctx, prefix, prefixEnd, 0, 1, true)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		earlier := max(2, newest.Header.Revision-random.Int63n(300))
		for range 5 {
			from, end := key(random.Intn(keyCount)), prefixEnd
			if random.Intn(3) == 0 {
				end = ""
			}
			// reads of single keys in the model always include their values
			client.Range(ctx, from, end, earlier, random.Int63n(20), end != "" && random.Intn(4) == 0)
		}
		part, isPrefix := key(random.Intn(keyCount)), random.Intn(2) == 0
		if isPrefix {
			part = part[:len(part)-random.Intn(4)]
		}
		revision := []int64{0, earlier}[random.Intn(2)]
		life, cancel := context.WithTimeout(ctx, time.Duration(random.Int63n(int64(2*time.Second))))
		for range client.Watch(life, part, revision, isPrefix, random.Intn(2) == 0, random.Intn(2) == 0) {
			if random.Intn(10) == 0 {
				client.RequestProgress(life)
			}
		}
		cancel()
	}
}

// history has every revision, as received by one watch from the first revision on.
type history struct {
	mutex  sync.Mutex
	events []*clientv3.Event
}

func newHistory(client *client.RecordingClient, ctx context.Context) *history {
	h := &history{}
	go func() {
		for answer := range client.Watch(ctx, prefix, 2, true, true, true) {
			h.mutex.Lock()
			h.events = append(h.events, answer.Events...)
			h.mutex.Unlock()
		}
	}()
	return h
}

// until waits for an event with the value.
func (h *history) until(value string) {
	for seen := 0; ; time.Sleep(10 * time.Millisecond) {
		h.mutex.Lock()
		for ; seen < len(h.events); seen++ {
			if string(h.events[seen].Kv.Value) == value {
				h.mutex.Unlock()
				return
			}
		}
		h.mutex.Unlock()
	}
}

// replay returns the history for etcd's model, after comparing it with the source key by key. A
// revision that no key of the prefix has belongs to a key of another prefix.
func (h *history) replay(source *source) (*model.EtcdReplay, error) {
	events, requests, next := map[string][]string{}, []model.EtcdRequest{}, int64(2)
	for _, event := range h.events {
		for ; next < event.Kv.ModRevision; next++ {
			requests = append(requests, request(model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{Key: "another"}}))
		}
		next++
		key, value := string(event.Kv.Key), string(event.Kv.Value)
		if event.Type == mvccpb.Event_DELETE {
			events[key] = append(events[key], deleted)
			requests = append(requests, request(model.EtcdOperation{Type: model.DeleteOperation, Delete: model.DeleteOptions{Key: key}}))
		} else {
			events[key] = append(events[key], value)
			put := model.PutOptions{Key: key, Value: model.ToValueOrHash(value)}
			requests = append(requests, request(model.EtcdOperation{Type: model.PutOperation, Put: put}))
		}
	}
	if !reflect.DeepEqual(events, source.history) {
		return nil, fmt.Errorf("the watch events are not the written changes")
	}
	// the revisions after the last event
	for range 100 {
		requests = append(requests, request(model.EtcdOperation{Type: model.PutOperation, Put: model.PutOptions{Key: "another"}}))
	}
	return model.NewReplay(requests), nil
}

func request(operation model.EtcdOperation) model.EtcdRequest {
	return model.EtcdRequest{Type: model.Txn, Txn: &model.TxnRequest{OperationsOnSuccess: []model.EtcdOperation{operation}}}
}

// fromOldRevisions starts watches from many earlier revisions, also from before kills. Each watch
// must be cancelled as compacted or receive the newest state of every key that changed since.
func (s *scene) fromOldRevisions() error {
	recording := s.client()
	listed, err := recording.Range(context.Background(), prefix, prefixEnd, 0, 0, false)
	if err != nil {
		return err
	}
	var head int64
	for _, kv := range listed.Kvs {
		head = max(head, kv.ModRevision)
	}
	answered, compacted := 0, 0
	for range 200 {
		seen := s.source.followers[s.random.Intn(followers)].seen
		revision := min(head, seen[s.random.Intn(len(seen))]+s.random.Int63n(2))
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		events, isCompacted := map[string]string{}, false
		due := map[string]string{}
		for _, kv := range listed.Kvs {
			if kv.ModRevision >= revision {
				due[string(kv.Key)] = string(kv.Value)
			}
		}
		for answer := range recording.Watch(ctx, prefix, revision, true, false, false) {
			isCompacted = answer.CompactRevision != 0
			for _, event := range answer.Events {
				if event.Type == mvccpb.Event_DELETE {
					delete(events, string(event.Kv.Key))
				} else {
					events[string(event.Kv.Key)] = string(event.Kv.Value)
				}
			}
			if answer.Header.Revision >= head && reflect.DeepEqual(events, due) {
				cancel()
			}
		}
		isOver := ctx.Err() == context.Canceled
		cancel()
		switch {
		case isCompacted:
			compacted++
		case isOver:
			answered++
		default:
			return fmt.Errorf("a watch from %d got %d of %d keys", revision, len(events), len(due))
		}
	}
	fmt.Printf("  200 watches from earlier revisions: %d received the current state, %d were compacted\n", answered, compacted)
	if answered == 0 {
		return fmt.Errorf("no watch continues after a kill")
	}
	return nil
}
