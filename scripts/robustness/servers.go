package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// cluster is the name of the mirrored cluster.
const cluster = "c01"

// servers are a real etcd and a real meshkeep that mirrors it, with their own directory.
type servers struct {
	meshkeepBinary, home, etcdURL, etcdAPIURL, apiURL string
	etcd, meshkeep                                 *exec.Cmd
}

func start(meshkeepBinary, etcdBinary string) *servers {
	home, err := os.MkdirTemp("", "meshkeep-robustness-")
	must(err)
	s := &servers{meshkeepBinary: meshkeepBinary, home: home, etcdURL: freeURL(), etcdAPIURL: freeURL()}
	peer := freeURL()
	s.etcd = exec.Command(etcdBinary, "--data-dir="+filepath.Join(home, "etcd"), "--listen-client-urls="+s.etcdURL, "--advertise-client-urls="+s.etcdURL,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer, "--unsafe-no-fsync=true")
	s.etcd.Stderr = s.file("etcd.log")
	must(s.etcd.Start())
	must(os.Mkdir(filepath.Join(home, "clustermesh"), 0o755))
	file := fmt.Sprintf("endpoints:\n- %s\n", s.etcdURL)
	must(os.WriteFile(filepath.Join(home, "clustermesh", cluster), []byte(file), 0o644))
	s.startMeshkeep()
	return s
}

func freeURL() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	defer listener.Close()
	return "http://" + listener.Addr().String()
}

func (s *servers) file(name string) *os.File {
	file, err := os.OpenFile(filepath.Join(s.home, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(err)
	return file
}

// startMeshkeep starts meshkeep with the existing data and waits until it listens.
func (s *servers) startMeshkeep() {
	s.meshkeep = exec.Command(s.meshkeepBinary, "serve", "--clustermesh-config="+filepath.Join(s.home, "clustermesh"), "--data-dir="+filepath.Join(s.home, "data"),
		"--listen=127.0.0.1:0", "--etcd-listen="+strings.TrimPrefix(s.etcdAPIURL, "http://"))
	s.meshkeep.Stderr = s.file("meshkeep.log")
	output, err := s.meshkeep.StdoutPipe()
	must(err)
	must(s.meshkeep.Start())
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		address, isAddress := strings.CutPrefix(lines.Text(), "listening on ")
		if isAddress && strings.HasSuffix(address, " as an etcd") {
			return
		}
		if isAddress {
			s.apiURL = address
		}
	}
	panic("meshkeep does not listen: see " + s.home)
}

// kill sends SIGKILL.
func (s *servers) kill() {
	must(s.meshkeep.Process.Kill())
	s.meshkeep.Wait()
}

func (s *servers) end() {
	s.kill()
	must(s.etcd.Process.Kill())
	s.etcd.Wait()
	os.RemoveAll(s.home)
}

// untilLive waits until everything in the source is mirrored.
func (s *servers) untilLive() {
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		answer, err := http.Get(s.apiURL + "/readyz?synced")
		if err == nil {
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			panic("meshkeep does not become live: see " + s.home)
		}
	}
}

// plainClient returns a client that records nothing.
func plainClient(url string) *clientv3.Client {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop(), Context: context.Background()})
	must(err)
	return c
}
