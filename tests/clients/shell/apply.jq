# Applies events to a state and prints each complete state.
foreach inputs as $event (
  {resets: 0, complete: false, position: null, objects: {}};
  ( if $event.type == "reset" then .resets += 1 | .complete = false | .objects = {}
    elif $event.type == "upsert" then .objects[$event.key] = ($event | {kind, object})
    elif $event.type == "delete" then del(.objects[$event.key])
    elif $event.type == "synced" then .complete = true
    else . end )
  | .position = ($event.position // $event.meta.position // .position);
  select(.complete)
)
