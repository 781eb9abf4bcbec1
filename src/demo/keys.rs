//! Keyboard control of the demo: single keys if standard input is a terminal.

use std::io::Read as _;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use super::control::{Ask, What};

/// Modes of the terminal, restored when this is dropped.
pub(super) struct Terminal(Termios);

impl Drop for Terminal {
    fn drop(&mut self) {
        // fails if the terminal was closed, which needs no restoring
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Reads keys in a thread until the process ends, which a blocked read does not delay. Returns
/// `None` if standard input is no terminal.
pub(super) fn read(orders: mpsc::Sender<Ask>) -> Option<Terminal> {
    let stdin = std::io::stdin();
    if !isatty(&stdin) {
        return None;
    }
    let before = tcgetattr(&stdin).ok()?;
    let mut modes = before.clone();
    // key by key and without echo; Ctrl-C remains a signal
    modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    modes.special_codes[SpecialCodeIndex::VMIN] = 1;
    tcsetattr(&stdin, OptionalActions::Now, &modes).ok()?;
    std::thread::spawn(move || {
        for byte in std::io::stdin().lock().bytes().map_while(Result::ok) {
            if let Some(ask) = order(byte)
                && orders.blocking_send(ask).is_err()
            {
                return;
            }
        }
    });
    Some(Terminal(before))
}

fn order(key: u8) -> Option<Ask> {
    match key {
        b'b' => Some(Ask::Next(What::Break)),
        b'l' => Some(Ask::Next(What::Lose)),
        b'h' => Some(Ask::Next(What::Heal)),
        b'r' => Some(Ask::Restart),
        b'q' => Some(Ask::Quit),
        _ => None,
    }
}
