// Content of each part if there is no remote cluster: the directory and the reason in red, unless
// meshkeep was started with --allow-no-clusters.

import { html } from "../html.js";
import { mirror } from "../mirror.js";

/**
 * Returns the reason why there is no remote cluster, or undefined if there is one, none is
 * expected, or it is unknown.
 */
export function noClusters() {
  return mirror.status?.directory.noClusters;
}

/** Error message that there is no remote cluster to mirror. */
export function NoClusters() {
  const reason = noClusters();
  if (!reason) return null;
  return html`<div class="sentence none-at-all" role="alert"><h2 class="red">No cluster is configured</h2>
    <p class="red">${reason}</p>
    <p>meshkeep mirrors each cluster that has a client file in <code>${mirror.status.directory.path}</code>, the directory of <code>--clustermesh-config</code>, as Cilium's agents do.
      In Kubernetes, a Secret is mounted there: check its name and namespace. meshkeep detects a new file immediately.</p></div>`;
}

/** Placeholder for an empty list of clusters. */
export function Empty() {
  if (noClusters()) return html`<${NoClusters} />`;
  if (!mirror.isRead || !mirror.status) return html`<p class="sentence quiet">Reading the clusters …</p>`;
  return html`<div class="sentence"><h2>No cluster yet</h2>
    <p>meshkeep mirrors each cluster that has a client file in <code>${mirror.status.directory.path}</code>, as Cilium's agents do. It detects a new file immediately.</p>
    ${mirror.status.directory.error && html`<p class="red">${mirror.status.directory.error}</p>`}</div>`;
}
