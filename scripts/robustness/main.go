// Runs etcd's own watch validators (robustness tests of go.etcd.io/etcd/tests/v3) with the etcd
// API: robustness MESHKEEP ETCD [SECONDS]
//
// A real etcd is changed at random, a real meshkeep mirrors it, and clients read, watch and resume
// at random meanwhile. `live`: meshkeep is not killed, and one watch receives the whole history;
// every validator must accept it. `killed`: meshkeep is killed and restarted repeatedly. A client
// then receives only the newest state of each key that it missed, so only the validators that do
// not compare the history must accept it, and every client must end with the current state.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

const (
	prefix = "cilium/cache/"
	// number of clients that follow everything, and of clients that read and watch parts
	followers = 4
	wanderers = 8
	// time after which a process is killed
	lifeMin, lifeSpread = 700 * time.Millisecond, 1500 * time.Millisecond
)

func main() {
	seconds := 30
	if len(os.Args) > 3 {
		seconds, _ = strconv.Atoi(os.Args[3])
	}
	failed := run("live", time.Duration(seconds)*time.Second, live)
	failed = run("killed", time.Duration(seconds)*time.Second, killed) || failed
	if failed {
		os.Exit(1)
	}
}

// scene has the programs of a run, the written history, and the clients that record all responses.
type scene struct {
	servers *servers
	source  *source
	clients *client.ClientSet
	random  *rand.Rand
	stop    context.CancelFunc
	ctx     context.Context
	group   sync.WaitGroup
	errors  chan error
}

func run(name string, length time.Duration, act func(*scene, time.Duration) (*model.EtcdReplay, error)) bool {
	seed := time.Now().UnixNano()
	fmt.Printf("%s: %v, seed %d\n", name, length, seed)
	servers := start(os.Args[1], os.Args[2])
	defer servers.end()
	ctx, stop := context.WithCancel(context.Background())
	s := &scene{
		servers: servers,
		source:  newSource(servers.etcdURL, rand.New(rand.NewSource(seed))),
		clients: client.NewSet(identity.NewIDProvider(), time.Now()),
		random:  rand.New(rand.NewSource(seed + 1)),
		stop:    stop, ctx: ctx,
		errors: make(chan error, 64),
	}
	replay, err := act(s, length)
	if err == nil {
		err = validated(s.clients.Reports(), replay)
	}
	if err != nil {
		fmt.Printf("  FAILED: %v\n", err)
	}
	return err != nil
}

// live runs one process: a watch from the first revision on receives everything.
func live(s *scene, length time.Duration) (*model.EtcdReplay, error) {
	golden := newHistory(s.client(), s.ctx)
	s.source.publish()
	s.servers.untilLive()
	s.spawn(length)
	if err := s.settle(length); err != nil {
		return nil, err
	}
	golden.until(s.source.newest())
	s.stop()
	s.group.Wait()
	return golden.replay(s.source)
}

// killed runs many processes, each ended by a kill.
func killed(s *scene, length time.Duration) (*model.EtcdReplay, error) {
	s.source.publish()
	s.servers.untilLive()
	s.spawn(length)
	kills, deadline := 0, time.Now().Add(length)
	for time.Now().Before(deadline) {
		time.Sleep(lifeMin + time.Duration(s.random.Int63n(int64(lifeSpread))))
		s.servers.kill()
		s.servers.startMeshkeep()
		kills++
	}
	s.servers.untilLive()
	if err := s.settle(0); err != nil {
		return nil, err
	}
	s.stop()
	s.group.Wait()
	fmt.Printf("  %d kills\n", kills)
	return nil, s.fromOldRevisions()
}

func (s *scene) client() *client.RecordingClient {
	recording, err := s.clients.NewClient([]string{s.servers.etcdAPIURL})
	must(err)
	return recording
}

// spawn starts the writers, followers and wanderers.
func (s *scene) spawn(length time.Duration) {
	s.source.write(&s.group, length)
	for number := range followers {
		recording, random := s.client(), rand.New(rand.NewSource(s.random.Int63()))
		s.group.Add(1)
		s.source.followers = append(s.source.followers, newFollower(recording, number%2 == 0))
		go func() {
			defer s.group.Done()
			if err := s.source.followers[number].follow(s.ctx, random); err != nil {
				s.errors <- err
			}
		}()
	}
	for range wanderers {
		recording, random := s.client(), rand.New(rand.NewSource(s.random.Int63()))
		s.group.Add(1)
		go func() {
			defer s.group.Done()
			wander(s.ctx, recording, random)
		}()
	}
}

// settle waits until the writes have ended and every follower has the current state.
func (s *scene) settle(length time.Duration) error {
	s.source.done.Wait()
	deadline := time.Now().Add(60*time.Second + length)
	for _, follower := range s.source.followers {
		for {
			different := follower.firstDifference(s.source.state())
			if different == "" {
				break
			}
			select {
			case err := <-s.errors:
				return err
			default:
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("a follower does not have the current state: %s", different)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	fmt.Printf("  %d writes; %d followers have the %d existing keys\n", s.source.writes(), followers, len(s.source.state()))
	return nil
}

func validated(reports []report.ClientReport, replay *model.EtcdReplay) error {
	watches, events, reads := 0, 0, 0
	for _, r := range reports {
		watches += len(r.Watch)
		events += r.WatchEventCount()
		reads += len(r.KeyValue)
	}
	fmt.Printf("  %d clients, %d watches, %d events, %d reads\n", len(reports), watches, events, reads)
	if watches == 0 || events == 0 || reads == 0 {
		return fmt.Errorf("nothing was recorded")
	}
	var failed error
	for _, check := range validate.Checks(replay) {
		if check.NeedsHistory && replay == nil {
			continue
		}
		var broken error
		for _, r := range reports {
			if err := check.Run(r); err != nil {
				broken = err
			}
		}
		if broken != nil {
			failed = broken
			fmt.Printf("  %s: %v\n", check.Name, broken)
		} else {
			fmt.Printf("  %s: holds\n", check.Name)
		}
	}
	return failed
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
