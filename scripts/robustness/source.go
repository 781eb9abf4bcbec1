package main

import (
	"context"
	"fmt"
	"math/rand"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// Number of keys. There are few, so that each has a long history.
	keyCount = 60
	// Average time between two transactions.
	pause = 3 * time.Millisecond
)

// source is the mirrored etcd with its written history.
type source struct {
	client    *clientv3.Client
	random    *rand.Rand
	done      sync.WaitGroup
	followers []*follower

	mutex   sync.Mutex
	number  int
	values  map[string]string
	history map[string][]string
	last    string
}

// deleted marks a delete in a key's history.
const deleted = "-"

func newSource(url string, random *rand.Rand) *source {
	return &source{client: plainClient(url), random: random, values: map[string]string{}, history: map[string][]string{}}
}

func address(index int) string { return fmt.Sprintf("10.1.%d.%d", index/20, index%20+1) }

func key(index int) string { return prefix + "ip/v1/" + cluster + "/" + address(index) }

func value(index, number int) string {
	return fmt.Sprintf(`{"IP":"%s","Mask":null,"HostIP":"172.16.0.1","ID":65793,"Key":0,"Metadata":"","K8sNamespace":"shop","K8sPodName":"pod-%d"}`, address(index), number)
}

// publish writes the cluster config and the canaries, as a writer does first.
func (s *source) publish() {
	config := fmt.Sprintf(`{"id":1,"capabilities":{"syncedCanaries":true,"cached":true,"maxConnectedClusters":255}}`)
	s.put("cilium/.heartbeat", "2026-01-12T09:31:07Z")
	s.put("cilium/cluster-config/"+cluster, config)
	for _, kind := range []string{"nodes", "services", "identities", "ip"} {
		s.put("cilium/synced/"+cluster+"/cilium/cache/"+kind+"/v1", "2026-01-12T09:31:07Z")
	}
}

func (s *source) put(key, value string) {
	_, err := s.client.Put(context.Background(), key, value)
	must(err)
}

// write runs transactions of one to four keys, each put or deleted, for the given time.
func (s *source) write(group *sync.WaitGroup, length time.Duration) {
	group.Add(1)
	s.done.Add(1)
	go func() {
		defer group.Done()
		defer s.done.Done()
		for deadline := time.Now().Add(length); time.Now().Before(deadline); time.Sleep(time.Duration(s.random.Int63n(2 * int64(pause)))) {
			s.writeSome()
		}
	}()
}

func (s *source) writeSome() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	var operations []clientv3.Op
	for _, index := range s.random.Perm(keyCount)[:1+s.random.Intn(4)] {
		key := key(index)
		if _, exists := s.values[key]; exists && s.random.Intn(4) == 0 {
			operations = append(operations, clientv3.OpDelete(key))
			delete(s.values, key)
			s.history[key] = append(s.history[key], deleted)
		} else {
			s.number++
			value := value(index, s.number)
			operations = append(operations, clientv3.OpPut(key, value))
			s.values[key] = value
			s.history[key] = append(s.history[key], value)
			s.last = value
		}
	}
	_, err := s.client.Txn(context.Background()).Then(operations...).Commit()
	must(err)
}

// newest returns the value that was put last.
func (s *source) newest() string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.last
}

func (s *source) writes() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	count := 0
	for _, history := range s.history {
		count += len(history)
	}
	return count
}

// state returns the current values by key.
func (s *source) state() map[string]string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	state := map[string]string{}
	for key, value := range s.values {
		state[key] = value
	}
	return state
}
