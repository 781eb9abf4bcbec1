import type { Client, ClientOptions } from "openapi-fetch";
import type { components, operations, paths } from "./schema.js";

export type { components, operations, paths };

/** Creates a client for the meshkeep at `options.baseUrl`. A token is a header of `options.headers`. */
export declare function createMeshkeepClient(options?: ClientOptions): Client<paths>;
