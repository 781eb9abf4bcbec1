// Follows the change stream with a browser's EventSource or a compatible one, and reports each
// complete state as JSON.
export function follow(EventSource, base, report) {
  const state = { resets: 0, closed: 0, position: null, objects: {} };
  let complete = false;

  function open(query) {
    const source = new EventSource(`${base}/v1/events?${query}`);
    const on = (type, apply) =>
      source.addEventListener(type, (event) => {
        apply(JSON.parse(event.data));
        if (complete) {
          state.position = event.lastEventId;
          report(JSON.stringify(state));
        }
      });
    on("reset", () => {
      complete = false;
      state.resets += 1;
      state.objects = {};
    });
    on("upsert", ({ key, kind, object }) => (state.objects[key] = { kind, object }));
    on("delete", ({ key }) => delete state.objects[key]);
    on("synced", () => (complete = true));
    on("bookmark", () => {});
    source.addEventListener("error", (event) => {
      // A broken connection is re-established automatically. Any status other than 200, for
      // instance a proxy's 502, closes an EventSource permanently.
      if (source.readyState !== EventSource.CLOSED) return;
      state.closed += 1;
      setTimeout(() => open(state.position ? `after=${state.position}` : "snapshot=true"), 500);
    });
  }
  open("snapshot=true");
  return state;
}
