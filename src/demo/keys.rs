//! Keyboard control of the demo: single keys if standard input is a terminal.

use std::io::Read as _;

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, isatty, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use super::control::{ClusterAction, DemoCommand};

/// Modes of the terminal, restored when this is dropped.
pub(super) struct RawTerminal(Termios);

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // fails if the terminal was closed, which needs no restoring
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Reads keys in a thread until the process ends. A blocked read does not delay the end of the
/// process. Returns `None` if standard input is no terminal.
pub(super) fn read_keys(commands: mpsc::Sender<DemoCommand>) -> Option<RawTerminal> {
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
            if let Some(command) = parse_command(byte)
                && commands.blocking_send(command).is_err()
            {
                return;
            }
        }
    });
    Some(RawTerminal(before))
}

fn parse_command(key: u8) -> Option<DemoCommand> {
    match key {
        b'b' => Some(DemoCommand::Next(ClusterAction::Break)),
        b'l' => Some(DemoCommand::Next(ClusterAction::Lose)),
        b'h' => Some(DemoCommand::Next(ClusterAction::Heal)),
        b'r' => Some(DemoCommand::Restart),
        b'q' => Some(DemoCommand::Quit),
        _ => None,
    }
}
