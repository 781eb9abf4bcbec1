// Reads nodes, services, lookups, an error and all changes with the client generated from the
// OpenAPI document, and prints everything as one JSON object, like the other generated clients:
// read_all BASE_URL
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
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
	case StreamedKindNode:
		node := must(event.Object.AsNode())
		return "node " + node.Cluster + "/" + node.Name
	case StreamedKindService:
		service := must(event.Object.AsService())
		return "service " + service.Cluster + "/" + service.Namespace + "/" + service.Name
	case StreamedKindIpcache:
		return "ipcache " + must(event.Object.AsIpcacheEntry()).Prefix
	case StreamedKindProblem:
		return "problem " + must(event.Object.AsFinding()).Id
	}
	return string(*event.Kind)
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
	for _, service := range ok(must(client.ListServicesWithResponse(ctx, &ListServicesParams{})).JSON200).Items {
		services = append(services, service.Cluster+"/"+service.Namespace+"/"+service.Name)
	}
	lookup := ok(must(client.LookupIpWithResponse(ctx, &LookupIpParams{Ip: ips[0]})).JSON200)
	for _, item := range ok(must(client.LookupIpsWithResponse(ctx, &LookupIpsParams{}, LookupRequest{Ips: ips})).JSON200).Items {
		batch = append(batch, entry(item.Match))
	}
	problem := ok(must(client.GetNodeWithResponse(ctx, "nowhere", "nobody", &GetNodeParams{})).ApplicationproblemJSON404)
	must(0, json.NewEncoder(os.Stdout).Encode(map[string]any{
		"nodes":    names,
		"services": services,
		"lookup":   entry(lookup.Match),
		"batch":    batch,
		"problem":  problem.Code,
		"changes":  changes(ctx, client),
	}))
}
