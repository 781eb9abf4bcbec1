//! Colours of texts in a terminal.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Colour {
    /// An error.
    Red,
    /// A warning.
    Yellow,
    /// A good state.
    Green,
    /// A minor detail.
    Faint,
}

/// Returns the text in a colour, which `print_coloured` removes if standard output has no colours.
pub(in crate::cli) fn coloured(text: &str, colour: Colour) -> String {
    let code = match colour {
        Colour::Red => "31",
        Colour::Yellow => "33",
        Colour::Green => "32",
        Colour::Faint => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}
