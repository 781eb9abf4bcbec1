import createClient from "openapi-fetch";

export function createMeshkeepClient(options) {
  return createClient(options);
}
