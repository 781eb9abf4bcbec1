// Reads nodes, services, lookups, an error, an unchanged list, the stream and all changes with the
// client generated from the OpenAPI document, and prints everything as one JSON object, like the
// other generated clients: read_all BASE_URL
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

const pageLimit = 3

func must[T any](answer T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return answer
}

func ok[T any](answer *T) T {
	if answer == nil {
		fmt.Fprintln(os.Stderr, "the server answered with a problem document")
		os.Exit(1)
	}
	return *answer
}

func nodes(ctx context.Context, client *ClientWithResponses) (found []Node) {
	limit := int64(pageLimit)
	var token *string
	for {
		answer := must(client.ListNodesWithResponse(ctx, &ListNodesParams{Limit: &limit, PageToken: token}))
		page := ok(answer.JSON200)
		found = append(found, page.Items...)
		if token = page.NextPageToken; token == nil {
			return found
		}
	}
}

// Describes an event by its object, decoded according to its kind.
func describe(event WatchEvent) string {
	switch *event.Kind {
	case "node":
		node := must(event.Object.AsNode())
		return "node " + node.Cluster + "/" + node.Name
	case "service":
		service := must(event.Object.AsService())
		return "service " + service.Cluster + "/" + service.Namespace + "/" + service.Name
	case "ipcache":
		return "ipcache " + must(event.Object.AsIpcacheEntry()).Prefix
	case "problem":
		return "problem " + must(event.Object.AsFinding()).Id
	}
	return *event.Kind
}

func changes(ctx context.Context, client *ClientWithResponses) map[string]string {
	objects := map[string]string{}
	limit, snapshot := int64(7), true
	parameters := &ListChangesParams{Limit: &limit, Snapshot: &snapshot}
	for {
		answer := ok(must(client.ListChangesWithResponse(ctx, parameters)).JSON200)
		for _, event := range answer.Events {
			switch event.Type {
			case EventTypeReset:
				clear(objects)
			case EventTypeUpsert:
				objects[*event.Key] = describe(event)
			case EventTypeDelete:
				delete(objects, *event.Key)
			}
		}
		if !answer.More {
			return objects
		}
		parameters = &ListChangesParams{Limit: &limit, After: &answer.NextPosition}
	}
}

// Follows the stream until it has caught up, after a position if there is one.
func synced(ctx context.Context, client *ClientWithResponses, position *string) (event WatchEvent) {
	snapshot := true
	parameters := &WatchEventsParams{Kind: &[]StreamedKind{"node"}, Snapshot: &snapshot, LastEventID: position}
	stream := must(client.WatchEvents(ctx, parameters))
	defer stream.Body.Close()
	lines := bufio.NewScanner(stream.Body)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data:")
		if !found {
			continue
		}
		event = WatchEvent{}
		must(0, json.Unmarshal([]byte(data), &event))
		if event.Type == EventTypeSynced {
			return event
		}
	}
	fmt.Fprintln(os.Stderr, "the stream ended")
	os.Exit(1)
	return event
}

func entry(match *IpcacheEntry) string {
	if match == nil {
		return ""
	}
	return match.Cluster + "/" + match.Prefix
}

func main() {
	ctx := context.Background()
	client := must(NewClientWithResponses(os.Args[1]))
	found := nodes(ctx, client)
	var names, services, batch, ips []string
	for _, node := range found {
		names = append(names, node.Cluster+"/"+node.Name)
		ips = append(ips, node.Addresses[0].Ip)
	}
	list := must(client.ListServicesWithResponse(ctx, &ListServicesParams{}))
	for _, service := range ok(list.JSON200).Items {
		services = append(services, service.Cluster+"/"+service.Namespace+"/"+service.Name)
	}
	lookup := ok(must(client.LookupIpWithResponse(ctx, &LookupIpParams{Ip: ips[0]})).JSON200)
	for _, item := range ok(must(client.LookupIpsWithResponse(ctx, &LookupIpsParams{}, LookupRequest{Ips: ips})).JSON200).Items {
		batch = append(batch, entry(item.Match))
	}
	tag := list.HTTPResponse.Header.Get("ETag")
	unchanged := must(client.ListServicesWithResponse(ctx, &ListServicesParams{IfNoneMatch: &tag}))
	snapshot := synced(ctx, client, nil)
	replay := synced(ctx, client, snapshot.Position)
	problem := ok(must(client.GetNodeWithResponse(ctx, "nowhere", "nobody", &GetNodeParams{})).ApplicationproblemJSON404)
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"nodes":     names,
		"services":  services,
		"lookup":    entry(lookup.Match),
		"batch":     batch,
		"problem":   problem.Code,
		"unchanged": unchanged.StatusCode(),
		"stream":    []any{snapshot.Mode, replay.Mode},
		"changes":   changes(ctx, client),
	}))
}
