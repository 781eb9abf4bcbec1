//! `meshkeep man`, generated from clap's description of the commands.

use std::io;

use clap::Command;

use crate::cli::failure::{CommandResult, ExitStatus};
use crate::cli::terminal::output::print;

/// Prints one manual page for all commands, for `man -l -`.
pub(in crate::cli) fn man(command: Command) -> CommandResult {
    let mut page = Vec::new();
    let written =
        clap_mangen::Man::new(command.clone()).render(&mut page).and_then(|()| render_subcommands(&command, "meshkeep", &mut page));
    written?;
    print(&String::from_utf8_lossy(&page)).map(|()| ExitStatus::Success)
}

/// Renders the subcommands of a command recursively.
fn render_subcommands(command: &Command, title: &str, page: &mut Vec<u8>) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let title = format!("{title} {}", subcommand.get_name());
        let named = subcommand.clone().bin_name(&title).display_name(&title);
        let manual = clap_mangen::Man::new(named);
        manual.render_name_section(page)?;
        manual.render_synopsis_section(page)?;
        manual.render_options_section(page)?;
        render_subcommands(subcommand, &title, page)?;
    }
    Ok(())
}
