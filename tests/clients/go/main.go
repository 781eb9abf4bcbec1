// Follows the change stream with Go's standard library and prints each complete state:
// go-follow BASE [CA-FILE]
//
// Over TLS it uses the protocol that ALPN selects; the state contains its name.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

type event struct {
	Type   string          `json:"type"`
	Key    string          `json:"key"`
	Kind   string          `json:"kind"`
	Object json.RawMessage `json:"object"`
}

type receivedObject struct {
	Kind   string          `json:"kind"`
	Object json.RawMessage `json:"object"`
}

type state struct {
	Protocol string                    `json:"protocol"`
	Resets   int                       `json:"resets"`
	Position string                    `json:"position"`
	Objects  map[string]receivedObject `json:"objects"`
	complete bool
}

func main() {
	transport := &http.Transport{ForceAttemptHTTP2: true}
	if len(os.Args) > 2 {
		certificate, err := os.ReadFile(os.Args[2])
		if err != nil {
			panic(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(certificate)
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	client := &http.Client{Transport: transport}
	state := state{Objects: map[string]receivedObject{}}
	for {
		if err := state.follow(client, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// follow reads one connection to its end.
func (s *state) follow(client *http.Client, base string) error {
	request, err := http.NewRequest("GET", base+"/v1/events?snapshot=true", nil)
	if err != nil {
		return err
	}
	if s.Position != "" {
		request.Header.Set("Last-Event-ID", s.Position)
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", response.Status)
	}
	s.Protocol = response.Proto
	reader := bufio.NewReader(response.Body)
	var id, data string
	for {
		line, err := reader.ReadString('\n')
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			if data != "" {
				if err := s.apply(id, data); err != nil {
					return err
				}
			}
			id, data = "", ""
		case name == "id":
			id = value
		case name == "data":
			data = value
		}
	}
}

func (s *state) apply(id, data string) error {
	var event event
	if err := json.Unmarshal([]byte(data), &event); err != nil {
		return err
	}
	switch event.Type {
	case "reset":
		s.complete = false
		s.Resets++
		s.Objects = map[string]receivedObject{}
		s.Position = ""
	case "upsert":
		s.Objects[event.Key] = receivedObject{event.Kind, event.Object}
	case "delete":
		delete(s.Objects, event.Key)
	case "synced":
		s.complete = true
	}
	if id != "" {
		s.Position = id
	}
	if !s.complete {
		return nil
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}
