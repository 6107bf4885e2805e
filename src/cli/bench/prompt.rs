//! Request bodies, rendered into a buffer: what is the same in all of them is copied, only what makes a prompt new is
//! formatted.

use std::io::Write;

use super::flags::{PromptArgs, PromptForm};

/// Vocabulary from which token ids are drawn.
pub const VOCABULARY: u64 = 128_000;

/// Renders bodies of one shape.
#[derive(Debug)]
pub struct Prompts {
    form: PromptForm,
    block_size: usize,
    blocks: usize,
    shared_blocks: usize,
    model: String,
    /// Beginning of the first array, by common prefix.
    prefixes: Vec<Vec<u8>>,
    /// The same of the second array of the hash form.
    prefix_sequences: Vec<Vec<u8>>,
    /// Tokens of a suffix after its first block, which alone makes it new.
    suffix_tail: Vec<u8>,
    seed: u64,
}

impl Prompts {
    /// Prepares bodies for `model`.
    pub fn new(args: &PromptArgs, model: &str, seed: u64) -> Self {
        let (blocks, block_size) = (args.blocks as usize, args.block_size as usize);
        let shared_blocks = ((blocks as f64 * args.shared) as usize).min(blocks);
        let list = |stream: u64, count: usize| {
            let mut text = Vec::new();
            for position in 0..count as u64 {
                push_number(&mut text, hash_of(stream, position));
            }
            text
        };
        let tokens = |stream: u64, count: usize| {
            let mut text = Vec::new();
            for position in 0..count as u64 {
                push_number(&mut text, mix(stream, position) % VOCABULARY);
            }
            text
        };
        let groups = 0..u64::from(args.prefixes);
        let stream = |group: u64| mix(seed, group.wrapping_add(1));
        let (prefixes, prefix_sequences) = match args.prompt {
            PromptForm::Hashes => (
                groups.clone().map(|g| list(stream(g), shared_blocks)).collect(),
                groups.map(|g| list(!stream(g), shared_blocks)).collect(),
            ),
            PromptForm::Tokens => (groups.map(|g| tokens(stream(g), shared_blocks * block_size)).collect(), Vec::new()),
        };
        let tail_blocks = (blocks - shared_blocks).saturating_sub(1);
        let suffix_tail = match args.prompt {
            PromptForm::Hashes => Vec::new(),
            PromptForm::Tokens => tokens(mix(seed, u64::MAX), tail_blocks * block_size),
        };
        let model = serde_json::Value::from(model).to_string();
        Self {
            form: args.prompt,
            block_size,
            blocks,
            shared_blocks,
            model,
            prefixes,
            prefix_sequences,
            suffix_tail,
            seed,
        }
    }

    /// Tokens of each prompt.
    pub fn tokens(&self) -> usize {
        self.blocks * self.block_size
    }

    /// The body of request number `number`; its suffix is like no other's. With `id`, that is its selection id.
    pub fn render(&self, number: u64, id: Option<&str>) -> Vec<u8> {
        let group = (number % self.prefixes.len() as u64) as usize;
        let suffix_blocks = self.blocks - self.shared_blocks;
        let mut body =
            Vec::with_capacity(self.prefixes[group].len() * 4 + self.suffix_tail.len() + suffix_blocks * 44 + 256);
        open(&mut body, &self.model, id);
        let suffix = mix(self.seed ^ 0x5f5f, number);
        match self.form {
            PromptForm::Tokens => {
                body.extend_from_slice(b",\"token_ids\":[");
                body.extend_from_slice(&self.prefixes[group]);
                if suffix_blocks > 0 {
                    for position in 0..self.block_size as u64 {
                        push_number(&mut body, mix(suffix, position) % VOCABULARY);
                    }
                    body.extend_from_slice(&self.suffix_tail);
                }
                close_list(&mut body);
            }
            PromptForm::Hashes => {
                for (name, prefix, stream) in [
                    (&b",\"block_hashes\":["[..], &self.prefixes[group], suffix),
                    (&b",\"sequence_hashes\":["[..], &self.prefix_sequences[group], !suffix),
                ] {
                    body.extend_from_slice(name);
                    body.extend_from_slice(prefix);
                    for position in 0..suffix_blocks as u64 {
                        push_number(&mut body, hash_of(stream, position));
                    }
                    close_list(&mut body);
                }
                push_field(&mut body, "isl_tokens", self.tokens() as u64);
            }
        }
        body.push(b'}');
        body
    }
}

/// The beginning of a body.
pub fn open(body: &mut Vec<u8>, model: &str, id: Option<&str>) {
    body.extend_from_slice(b"{\"model_name\":");
    body.extend_from_slice(model.as_bytes());
    if let Some(id) = id {
        body.extend_from_slice(b",\"selection_id\":\"");
        body.extend_from_slice(id.as_bytes());
        body.push(b'"');
    }
}

/// Adds a number and a comma.
pub fn push_number(body: &mut Vec<u8>, number: u64) {
    write!(body, "{number},").expect("memory takes every byte");
}

/// Adds a field with a number.
pub fn push_field(body: &mut Vec<u8>, name: &str, number: u64) {
    write!(body, ",\"{name}\":{number}").expect("memory takes every byte");
}

/// Ends a list: its last comma becomes the bracket.
pub fn close_list(body: &mut Vec<u8>) {
    if body.last() == Some(&b',') {
        body.pop();
    }
    body.push(b']');
}

/// A hash as the wire has it: 63 bits, so that it is a positive i64.
pub fn hash_of(stream: u64, position: u64) -> u64 {
    mix(stream, position) >> 1
}

/// A well-mixed function of two numbers (the finaliser of SplitMix64).
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn prompts(form: PromptForm, blocks: u32, shared: f64) -> Prompts {
        let args = PromptArgs { prompt: form, blocks, block_size: 4, shared, prefixes: 3 };
        Prompts::new(&args, "m", 1)
    }

    fn body(prompts: &Prompts, number: u64) -> Value {
        serde_json::from_slice(&prompts.render(number, Some("x"))).unwrap()
    }

    fn list<'a>(body: &'a Value, name: &str) -> &'a [Value] {
        body[name].as_array().unwrap()
    }

    #[test]
    fn hash_bodies_share_a_beginning_by_group_and_nothing_else() {
        let prompts = prompts(PromptForm::Hashes, 8, 0.5);
        let (first, again, other) = (body(&prompts, 0), body(&prompts, 3), body(&prompts, 1));
        for name in ["block_hashes", "sequence_hashes"] {
            assert_eq!(list(&first, name).len(), 8);
            assert_eq!(list(&first, name)[..4], list(&again, name)[..4]);
            assert!(list(&first, name)[4..].iter().zip(&list(&again, name)[4..]).all(|(a, b)| a != b));
            assert_ne!(list(&first, name)[0], list(&other, name)[0]);
            assert!(list(&first, name).iter().all(|h| h.as_i64().is_some()));
        }
        assert_eq!(first["isl_tokens"], 32);
        assert_eq!((&first["selection_id"], &first["model_name"]), (&Value::from("x"), &Value::from("m")));
    }

    #[test]
    fn token_bodies_differ_from_the_first_block_of_their_suffix_on() {
        let prompts = prompts(PromptForm::Tokens, 8, 0.5);
        let (first, again) = (body(&prompts, 0), body(&prompts, 3));
        let (first, again) = (list(&first, "token_ids"), list(&again, "token_ids"));
        assert_eq!((first.len(), prompts.tokens()), (32, 32));
        assert_eq!(first[..16], again[..16]);
        assert_ne!(first[16..20], again[16..20]);
    }

    #[test]
    fn nothing_and_everything_can_be_shared() {
        for (shared, distinct) in [(0.0, true), (1.0, false)] {
            let prompts = prompts(PromptForm::Tokens, 4, shared);
            assert_eq!(body(&prompts, 0)["token_ids"] != body(&prompts, 3)["token_ids"], distinct);
            assert_eq!(list(&body(&prompts, 5), "token_ids").len(), 16);
        }
    }
}
