//! An error in one line, with what caused it.

use std::error::Error;

/// The error's own words, and behind them those of each cause that says anything new.
///
/// ```
/// use collectives_core::error::{Error, ErrorKind, with_causes};
///
/// let limit = std::io::Error::other("the limit of a file's size is 1024");
/// let error = Error::new(ErrorKind::Closed).caused_by(limit);
/// assert_eq!(
///     with_causes(&error),
///     "the communicator is closed: the limit of a file's size is 1024"
/// );
/// ```
#[must_use]
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}
