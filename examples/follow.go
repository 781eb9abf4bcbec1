// Keeps a copy of the ipcache of all clusters, with the client that oapi-codegen generates from openapi-3.0.json: follow http://127.0.0.1:9870
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

func main() {
	client, _ := NewClientWithResponses(os.Args[1])
	entries := map[string]any{}
	params := &ListChangesParams{Kind: &[]StreamedKind{"ipcache"}, Snapshot: new(true), WaitSeconds: new(int64(30))}
	for {
		answer, err := client.ListChangesWithResponse(context.Background(), params)
		if err == nil && answer.JSON200 == nil {
			err = fmt.Errorf("%s", answer.Status())
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err, "- trying again")
			time.Sleep(time.Second)
			continue
		}
		for _, event := range answer.JSON200.Events {
			if event.Type == EventTypeReset { // the position is no longer valid: everything is sent again
				clear(entries)
			} else if event.Type == EventTypeUpsert {
				entries[*event.Key] = event.Object
			} else if event.Type == EventTypeDelete {
				delete(entries, *event.Key)
			}
		}
		params.After = &answer.JSON200.NextPosition
		if !answer.JSON200.More { // with more to follow, the copy is incomplete
			json.NewEncoder(os.Stdout).Encode(map[string]any{"position": params.After, "entries": entries})
		}
	}
}
