//! Finds the end of a JSON value in bytes that arrive in pieces, without looking at a byte twice.

/// Progress through one value.
#[derive(Debug, Default)]
pub(super) struct ValueScanner {
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl ValueScanner {
    /// The length of the value `bytes` begins with, or `None` when more bytes are needed. `bytes` must begin with the
    /// same value on every call until its end was found. Does not check the value, only where it ends.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(&byte) = bytes.get(self.at) {
            let at = self.at;
            self.at += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => {
                        self.in_string = false;
                        if self.depth == 0 {
                            return self.found(at + 1);
                        }
                    }
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' if self.depth == 0 && at > 0 => return self.found(at),
                b'"' => self.in_string = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return self.found(at + 1);
                    }
                }
                // A number or a word ends before what follows it.
                b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if self.depth == 0 => return self.found(at),
                _ => {}
            }
        }
        None
    }

    fn found(&mut self, end: usize) -> Option<usize> {
        *self = Self::default();
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::ValueScanner;

    #[test]
    fn finds_the_end_whatever_the_pieces() {
        for (text, end) in [
            (r#"{"a":[1,{"b":"}"}]} ,"#, 19),
            (r#"[[]],"#, 4),
            (r#""a\"]\\" :"#, 8),
            ("123,", 3),
            ("null}", 4),
            ("-1.5e3 ", 6),
        ] {
            for piece in 1..=text.len() {
                let mut scanner = ValueScanner::default();
                let found = (1..)
                    .map(|count| count * piece)
                    .find_map(|upto| scanner.end(&text.as_bytes()[..upto.min(text.len())]));
                assert_eq!(found, Some(end), "{text} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn waits_for_what_is_not_complete() {
        for text in [r#"{"a":1"#, "\"abc", "\"abc\\", "12", "[", "tru"] {
            assert_eq!(ValueScanner::default().end(text.as_bytes()), None, "{text}");
        }
    }
}
