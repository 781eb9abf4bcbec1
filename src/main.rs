//! The meshkeep binary: parse, run, exit code.

fn main() {}
