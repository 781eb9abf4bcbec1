// What each part shows where there is no remote cluster: in red, with the directory and the reason, unless meshkeep was started with --allow-no-clusters.

import { html } from "../html.js";
import { mirror } from "../mirror.js";

/** Why there is no remote cluster although there should be one; undefined if all is well or not known yet. */
export function noClusters() {
  return mirror.status?.directory.noClusters;
}

/** Says in red that there is no remote cluster to mirror. */
export function NoClusters() {
  const reason = noClusters();
  if (!reason) return null;
  return html`<div class="sentence none-at-all" role="alert"><h2 class="red">No cluster is configured</h2>
    <p class="red">${reason}</p>
    <p>meshkeep mirrors each cluster that has a client file in <code>${mirror.status.directory.path}</code>, the directory of <code>--clustermesh-config</code>, as Cilium's agents do.
      In Kubernetes a Secret is mounted there: look at its name and its namespace. A new file is seen at once.</p></div>`;
}

/** What stands for the list of clusters while it is empty. */
export function Empty() {
  if (noClusters()) return html`<${NoClusters} />`;
  if (!mirror.isRead || !mirror.status) return html`<p class="sentence quiet">Reading the clusters …</p>`;
  return html`<div class="sentence"><h2>No cluster yet</h2>
    <p>meshkeep mirrors each cluster that has a client file in <code>${mirror.status.directory.path}</code>, as Cilium's agents do. It sees a new file at once.</p>
    ${mirror.status.directory.error && html`<p class="red">${mirror.status.directory.error}</p>`}</div>`;
}
