//! Human-readable errors of the operating system.

use std::fmt::Display;

/// Start of the suffix that the standard library adds to a system's message.
const NUMBER_PREFIX: &str = " (os error ";

/// Returns an error without its number: `Connection refused` instead of `Connection refused (os
/// error 111)`.
#[must_use]
pub fn readable_error(error: impl Display) -> String {
    let text = error.to_string();
    let (mut readable, mut rest) = (String::new(), text.as_str());
    while let Some((before, after)) = rest.split_once(NUMBER_PREFIX) {
        readable.push_str(before);
        rest = match after.split_once(')') {
            Some((number, after)) if number.bytes().all(|byte| byte.is_ascii_digit()) => after,
            _ => {
                readable.push_str(NUMBER_PREFIX);
                after
            }
        };
    }
    readable + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_error_number_is_removed() {
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(
            readable_error(format!("cannot connect to [::1]:1: {refused}; trying again")),
            "cannot connect to [::1]:1: Connection refused; trying again"
        );
        assert_eq!(readable_error(format!("{refused}, {refused}")), "Connection refused, Connection refused");
        for plain in ["", "a (b) c", "a (os error x) b", "a (os error 1"] {
            assert_eq!(readable_error(plain), plain);
        }
    }
}
