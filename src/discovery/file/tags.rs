//! Refuses tags that are none of YAML's core: what they stand on would be read as the type that is wanted, a list of
//! workers that a tool wrote as an object of its own as no workers at all.

use serde_saphyr::granit_parser::{Event, Parser};

use super::error::{FileError, Place};

/// Checks every tag of `text`. Where it cannot be read, the deserializer says why.
///
/// # Errors
/// The first tag that is none of the core's, with its place.
pub fn check(text: &str, file: &str) -> Result<(), FileError> {
    if !text.contains('!') {
        return Ok(());
    }
    let mut path = Path::default();
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        if event.tag().is_some_and(|tag| !tag.is_yaml_core_schema()) {
            let at = span.tag_start().unwrap_or(span.start);
            let place = Place { line_column: Some((at.line() as u64, at.col() as u64 + 1)), field: path.field() };
            let reason = "a tag that is none of YAML's own types".to_owned();
            return Err(FileError::Syntax { file: file.to_owned(), place, reason });
        }
        path.follow(&event);
    }
    Ok(())
}

/// Where the parser is: the collections that are open.
#[derive(Debug, Default)]
struct Path(Vec<Open>);

#[derive(Debug)]
enum Open {
    /// A sequence, and the number of the item that comes next.
    Items(usize),
    /// A mapping whose next node is a key.
    Key,
    /// A mapping whose next node is the value of this key.
    Value(String),
}

impl Path {
    /// The field of the node that comes next, as `workers[3].kv_events`; for a key, that of its mapping.
    fn field(&self) -> String {
        let mut field = String::new();
        for open in &self.0 {
            match open {
                Open::Items(at) => field.push_str(&format!("[{at}]")),
                Open::Key => {}
                Open::Value(key) => {
                    if !field.is_empty() {
                        field.push('.');
                    }
                    field.push_str(key);
                }
            }
        }
        field
    }

    fn follow(&mut self, event: &Event<'_>) {
        match event {
            Event::SequenceStart(..) => self.0.push(Open::Items(0)),
            Event::MappingStart(..) => self.0.push(Open::Key),
            Event::SequenceEnd | Event::MappingEnd => {
                self.0.pop();
                self.passed("?");
            }
            Event::Scalar(text, ..) => self.passed(text),
            Event::Alias(_) => self.passed("*"),
            _ => {}
        }
    }

    /// A node is behind; `text` is what it is called as a key.
    fn passed(&mut self, text: &str) {
        if let Some(open) = self.0.last_mut() {
            *open = match open {
                Open::Items(at) => Open::Items(*at + 1),
                Open::Key => Open::Value(text.to_owned()),
                Open::Value(_) => Open::Key,
            };
        }
    }
}
