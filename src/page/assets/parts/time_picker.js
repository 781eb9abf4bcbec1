// Choice of the time that an explanation is about.

import { Component, html } from "../html.js";
import { go, hash } from "../route.js";
import { dateTime, now, utc } from "../words.js";

/** Quick choices, with their durations in ms. */
const AGO = [
  ["10m", 600_000],
  ["1h", 3_600_000],
  ["1d", 86_400_000],
];

/** Returns a time in the form of a `datetime-local` input. */
function inputText(time) {
  return time === null ? "" : dateTime(time).replace(" ", "T");
}

/**
 * Form with an input for the time and with quick choices. `at` is the current choice in ms, or null
 * for the newest data.
 */
export class TimePicker extends Component {
  constructor(props) {
    super(props);
    this.state = { text: inputText(props.at) };
  }

  componentDidUpdate({ at }) {
    if (at !== this.props.at) this.setState({ text: inputText(this.props.at) });
  }

  open(time) {
    go(hash("explain", [this.props.ip], { at: utc(Math.floor(time / 1_000) * 1_000) }));
  }

  submit(event) {
    event.preventDefault();
    const time = new Date(this.state.text).getTime();
    if (Number.isFinite(time)) this.open(time);
  }

  render({ ip, at }, { text }) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    return html`<form class="picker" aria-label="time of the explanation" onSubmit=${(event) => this.submit(event)}>
      <a class="pill" href=${hash("explain", [ip])} aria-current=${at === null ? "true" : undefined}>newest</a>
      ${AGO.map(([name, ms]) => html`<button key=${name} type="button" class="pill" onClick=${() => this.open(now() - ms)}>${name} ago</button>`)}
      <label>at <input type="datetime-local" name="at" step="1" required value=${text} onInput=${(event) => this.setState({ text: event.target.value })} /></label>
      <button type="submit">show</button>
      <span class="quiet">${zone} time</span>
    </form>`;
  }
}
