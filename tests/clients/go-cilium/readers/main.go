// Reads client files with Cilium's own reader and etcd's, as agents do, and prints the given table
// with the results for each file: go-cilium-readers TABLE.json
package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/cilium/pkg/clustermesh/common"
	clientyaml "go.etcd.io/etcd/client/v3/yaml"
)

type row struct {
	Name string `json:"name"`
	// Content, as text or in base64.
	Text  string `json:"text,omitempty"`
	Bytes []byte `json:"bytes,omitempty"`
	Seen  seen   `json:"seen"`
}

// Results of an agent for a file.
type seen struct {
	// True if agents treat the file as a client file.
	IsClientFile bool `json:"isClientFile"`
	Refused      bool `json:"refused"`
	// Certificate that agents look for first.
	Awaits                string              `json:"awaits,omitempty"`
	Endpoints             []string            `json:"endpoints,omitempty"`
	Username              string              `json:"username,omitempty"`
	Password              string              `json:"password,omitempty"`
	InsecureTransport     bool                `json:"insecureTransport,omitempty"`
	InsecureSkipTLSVerify bool                `json:"insecureSkipTlsVerify,omitempty"`
	HostAliases           map[string][]string `json:"hostAliases,omitempty"`
}

func main() {
	var table []row
	content, err := os.ReadFile(os.Args[1])
	must(err)
	must(json.Unmarshal(content, &table))
	directory, err := os.MkdirTemp("", "readers")
	must(err)
	defer os.RemoveAll(directory)
	for i := range table {
		content := table[i].Bytes
		if content == nil {
			content = []byte(table[i].Text)
		}
		must(os.WriteFile(filepath.Join(directory, table[i].Name), content, 0o600))
	}
	clientFiles, err := common.ConfigFiles(directory)
	must(err)
	for i := range table {
		_, isClientFile := clientFiles[table[i].Name]
		table[i].Seen = read(filepath.Join(directory, table[i].Name))
		table[i].Seen.IsClientFile = isClientFile
	}
	// one row per line
	for i := range table {
		line, err := json.Marshal(table[i])
		must(err)
		start, end := "\n", ","
		if i == 0 {
			start = "[\n"
		}
		if i == len(table)-1 {
			end = "\n]\n"
		}
		_, err = os.Stdout.WriteString(start + string(line) + end)
		must(err)
	}
}

func read(path string) seen {
	aliases, err := common.ParseCiliumConfig(path)
	if err != nil {
		return seen{Refused: true}
	}
	config, err := clientyaml.NewConfig(path)
	if missing := (*fs.PathError)(nil); errors.As(err, &missing) {
		return seen{Awaits: missing.Path}
	}
	if err != nil {
		return seen{Refused: true}
	}
	seen := seen{
		Endpoints: config.Endpoints, Username: config.Username, Password: config.Password,
		InsecureTransport: config.TLS == nil, InsecureSkipTLSVerify: config.TLS != nil && config.TLS.InsecureSkipVerify,
	}
	if len(aliases.HostAliases) > 0 {
		seen.HostAliases = map[string][]string{}
	}
	for _, alias := range aliases.HostAliases {
		for _, ip := range alias.IPs {
			text, _ := ip.MarshalText()
			seen.HostAliases[alias.Hostname] = append(seen.HostAliases[alias.Hostname], string(text))
		}
	}
	return seen
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
