//! Errors as text: what a line of a log or a status says of one that has causes.

use std::error::Error;

/// The cause that says what happened: "connection refused" rather than "error sending request".
pub(crate) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// `error` and its causes, once each: some errors print their causes themselves.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failure {
        text: &'static str,
        source: Option<Box<Failure>>,
    }

    fn failure(text: &'static str, source: Option<Failure>) -> Failure {
        Failure { text, source: source.map(Box::new) }
    }

    #[test]
    fn causes_are_told_once_each() {
        let refused = failure("connection refused", None);
        let error = failure("cannot ask", Some(failure("call: connection refused", Some(refused))));
        assert_eq!(chain(&error), "cannot ask: call: connection refused");
        assert_eq!(innermost(&error), "connection refused");
        assert_eq!(chain(&failure("alone", None)), "alone");
    }
}
