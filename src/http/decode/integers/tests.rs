//! The parser of integer arrays against `serde_json`.

use super::*;

/// What `serde_json` makes of the array at the start of `text`.
fn library<T: serde::de::DeserializeOwned>(text: &[u8]) -> Option<(Vec<T>, usize)> {
    let mut stream = serde_json::Deserializer::from_slice(text).into_iter::<Vec<T>>();
    let values = stream.next()?.ok()?;
    Some((values, stream.byte_offset()))
}

fn check<T>(text: &[u8])
where
    T: Integer + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let ours = read_both_ways::<T>(text);
    if let Some(ours) = ours {
        assert_eq!(Some(ours), library::<T>(text), "{}", String::from_utf8_lossy(text));
    }
}

/// The array at the start of `text`, with and without vector instructions.
fn read_both_ways<T: Integer + PartialEq + std::fmt::Debug>(text: &[u8]) -> Option<(Vec<T>, usize)> {
    let ours = parse::<T>(text, 0);
    assert_eq!(ours, parse_by::<T>(text, 0, |_, at, _| Some(at)), "{}", String::from_utf8_lossy(text));
    ours
}

fn read<T: Integer + PartialEq + std::fmt::Debug>(text: &str) -> Option<Vec<T>> {
    read_both_ways(text.as_bytes()).map(|(values, end)| {
        assert_eq!(end, text.len());
        values
    })
}

#[test]
fn usual_arrays_are_read_without_the_library() {
    assert_eq!(read::<u32>("[]"), Some(vec![]));
    assert_eq!(read::<u32>("[ \n]"), Some(vec![]));
    assert_eq!(read::<u32>("[0]"), Some(vec![0]));
    assert_eq!(read::<u32>("[4294967295, 0]"), Some(vec![u32::MAX, 0]));
    assert_eq!(read::<i64>("[-9223372036854775808,9223372036854775807]"), Some(vec![i64::MIN, i64::MAX]));
    let mut rng = fastrand::Rng::with_seed(7);
    for separator in [",", ", ", ",\n    ", " , "] {
        let tokens: Vec<u32> = (0..3000).map(|_| rng.u32(..) >> rng.u32(0..32)).collect();
        let text: Vec<_> = tokens.iter().map(u32::to_string).collect();
        assert_eq!(read::<u32>(&format!("[{}]", text.join(separator))), Some(tokens));
        let hashes: Vec<i64> = (0..3000).map(|_| rng.i64(..) >> rng.u32(0..64)).collect();
        let text: Vec<_> = hashes.iter().map(i64::to_string).collect();
        assert_eq!(read::<i64>(&format!("[{}]", text.join(separator))), Some(hashes));
    }
}

#[test]
fn unusual_elements_are_left_to_the_library_wherever_they_stand() {
    let bad = [
        "1.0",
        "1e3",
        "1E3",
        "-1",
        "-0",
        "00",
        "01",
        "4294967296",
        "18446744073709551616",
        "99999999999999999999999",
        "\"1\"",
        "null",
        "true",
        "[1]",
        "{}",
        "",
        " ",
        "+1",
        "1 2",
        "-",
        "--1",
        "1-",
        "- 1",
        "0x1",
        "\u{661}",
        "1\u{0}",
    ];
    for count in [1, 7, 9, 40] {
        for text in bad {
            let before = "12345,".repeat(count);
            let after = ",54321".repeat(count);
            let array = format!("[{before}{text}{after}]");
            assert_eq!(read_both_ways::<u32>(array.as_bytes()), None, "{array}");
        }
        for text in ["9223372036854775808", "-9223372036854775809", "-0", "1.5", "-", "-00", "-01", "--1"] {
            let array = format!("[{}{text}{}]", "-123456789012345678,".repeat(count), ",7".repeat(count));
            assert_eq!(read_both_ways::<i64>(array.as_bytes()), None, "{array}");
        }
    }
}

#[test]
fn a_cut_array_is_nothing() {
    let text = format!("[{}7]", "123456, ".repeat(30));
    for end in 0..text.len() {
        assert_eq!(read_both_ways::<u32>(&text.as_bytes()[..end]), None, "cut at {end}");
    }
}

#[test]
fn mutated_arrays_never_disagree_with_the_library() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let alphabet = b"0123456789,,, -.e[]\n\t\"x";
    for _ in 0..20_000 {
        let mut text = b"[".to_vec();
        for index in 0..rng.usize(0..60) {
            if index > 0 {
                text.extend_from_slice(if rng.bool() { b"," } else { b", " });
            }
            let bits = rng.u32(0..64);
            if rng.u8(..) < 20 {
                text.push(b'-');
            }
            text.extend_from_slice((rng.u64(..) >> bits).to_string().as_bytes());
        }
        text.push(b']');
        for _ in 0..rng.usize(0..3) {
            let at = rng.usize(1..text.len());
            match rng.u8(0..3) {
                0 => text[at] = alphabet[rng.usize(..alphabet.len())],
                1 => text.insert(at, alphabet[rng.usize(..alphabet.len())]),
                _ => drop(text.remove(at)),
            }
            if text.len() < 2 {
                break;
            }
        }
        check::<u32>(&text);
        check::<i64>(&text);
    }
}

#[test]
fn every_byte_in_place_of_every_other_is_judged_as_by_the_library() {
    let mut rng = fastrand::Rng::with_seed(11);
    let tokens: Vec<_> = (0..28).map(|_| (rng.u32(..100_000_000) >> rng.u32(0..27)).to_string()).collect();
    for separator in [",", ", "] {
        let text = format!("[{}]", tokens.join(separator)).into_bytes();
        for at in 1..text.len() {
            for byte in 0..=u8::MAX {
                let mut changed = text.clone();
                changed[at] = byte;
                check::<u32>(&changed);
            }
        }
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn vector_instructions_read_usual_arrays_up_to_their_last_block() {
    if fearless_simd::Level::new().as_avx2().is_none() {
        println!("this processor has none that are used");
        return;
    }
    let text = format!("[{}7]", "123456, ".repeat(100));
    let (mut tokens, mut hashes) = (Vec::new(), Vec::new());
    assert!(text.len() - wide::parse_tokens(text.as_bytes(), 25, &mut tokens) < 2 * BLOCK);
    assert!(text.len() - wide::parse_hashes(text.as_bytes(), 25, &mut hashes).expect("usual") < 2 * BLOCK);
    assert!(tokens.len() > 80 && hashes.len() > 80);
}
