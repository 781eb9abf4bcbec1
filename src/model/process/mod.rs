//! Settings of the process, the addresses that it listens on and the web pages that may send it
//! requests, the formats of its posts, the detail of its metrics, and the dump that it serves.

pub(super) mod dump_source;
pub(super) mod listen;
pub(super) mod metrics_detail;
pub(super) mod page_origin;
pub(super) mod setting;
pub(super) mod webhook_format;
