//! Arrays of JSON integers, read at one to two nanoseconds an integer.
//!
//! Invariant: `Some` only where `serde_json` reads the same values and ends at the same place. Whatever is unusual
//! (a float, an exponent, a leading zero, a value out of range, a syntax error) is `None`, and the library decides.
//!
//! Blocks of 64 bytes are classified eight bytes at a time into a mask of digits; numbers are cut out by it and
//! converted eight digits at a time. Where the processor has them, vector instructions do the first for all, and for
//! token ids both.

#[cfg(target_arch = "x86_64")]
mod wide;

/// An integer type of a request.
pub(crate) trait Integer: Copy {
    /// Whether a minus sign is allowed.
    const SIGNED: bool;
    /// Typical bytes of text a value, to size the list.
    const TEXT_BYTES: usize;

    /// The value, when in range.
    fn from_parts(negative: bool, magnitude: u64) -> Option<Self>;

    /// As `parse_blocks`, by vector instructions, as far as these go; reads nothing where there are none.
    fn parse_wide(text: &[u8], at: usize, values: &mut Vec<Self>) -> Option<usize>;
}

impl Integer for u32 {
    const SIGNED: bool = false;
    const TEXT_BYTES: usize = 6;

    #[inline(always)]
    fn from_parts(_negative: bool, magnitude: u64) -> Option<Self> {
        u32::try_from(magnitude).ok()
    }

    fn parse_wide(text: &[u8], at: usize, values: &mut Vec<Self>) -> Option<usize> {
        Some(wide::parse_tokens(text, at, values))
    }
}

impl Integer for i64 {
    const SIGNED: bool = true;
    const TEXT_BYTES: usize = 20;

    #[inline(always)]
    fn from_parts(negative: bool, magnitude: u64) -> Option<Self> {
        if negative {
            // "-0" is a float to serde_json.
            (magnitude != 0).then_some(())?;
            0i64.checked_sub_unsigned(magnitude)
        } else {
            i64::try_from(magnitude).ok()
        }
    }

    fn parse_wide(text: &[u8], at: usize, values: &mut Vec<Self>) -> Option<usize> {
        wide::parse_hashes(text, at, values)
    }
}

/// Without vector instructions that are known here.
#[cfg(not(target_arch = "x86_64"))]
mod wide {
    pub(super) fn parse_tokens(_text: &[u8], at: usize, _values: &mut Vec<u32>) -> usize {
        at
    }

    pub(super) fn parse_hashes(_text: &[u8], at: usize, _values: &mut Vec<i64>) -> Option<usize> {
        Some(at)
    }
}

/// Tells the bytes of a block apart; each answer has a bit a byte.
trait Classes: Copy {
    /// The digits.
    fn digits(self, block: &[u8; BLOCK]) -> u64;

    /// The bytes that are `byte`.
    fn equal(self, block: &[u8; BLOCK], byte: u8) -> u64;
}

/// Eight bytes at a time, on any machine.
#[derive(Clone, Copy)]
struct Words;

impl Classes for Words {
    #[inline(always)]
    fn digits(self, block: &[u8; BLOCK]) -> u64 {
        mask_of(block, digits_of)
    }

    #[inline(always)]
    fn equal(self, block: &[u8; BLOCK], byte: u8) -> u64 {
        mask_of(block, |word| equal_to(word, byte))
    }
}

const BLOCK: usize = 64;
/// Most digits of a u64.
const MAX_DIGITS: usize = 20;
/// Bytes before a number's end that conversion may read.
const LOOK_BACK: usize = 24;

/// Reads the array whose `[` is at `open`; returns the values and the position after its `]`.
pub(crate) fn parse<T: Integer>(text: &[u8], open: usize) -> Option<(Vec<T>, usize)> {
    parse_by(text, open, T::parse_wide)
}

/// As [`parse`]; `wide` reads what it can before the portable way.
fn parse_by<T: Integer>(
    text: &[u8],
    open: usize,
    wide: impl Fn(&[u8], usize, &mut Vec<T>) -> Option<usize>,
) -> Option<(Vec<T>, usize)> {
    let mut at = skip_space(text, open + 1);
    if *text.get(at)? == b']' {
        return Some((Vec::new(), at + 1));
    }
    let mut values = Vec::with_capacity((text.len() - at) / T::TEXT_BYTES + 1);
    // Where whole blocks are worth another try.
    let mut retry = LOOK_BACK;
    loop {
        if at >= retry {
            at = wide(text, at, &mut values)?;
            at = parse_blocks(Words, text, at, &mut values)?;
            retry = at + BLOCK;
        }
        let (value, end) = parse_one(text, at)?;
        values.push(value);
        at = skip_space(text, end);
        match *text.get(at)? {
            b',' => at = skip_space(text, at + 1),
            b']' => return Some((values, at + 1)),
            _ => return None,
        }
    }
}

pub(crate) fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// One number at `at`, digit by digit; returns it and the position after it.
fn parse_one<T: Integer>(text: &[u8], at: usize) -> Option<(T, usize)> {
    let negative = T::SIGNED && text.get(at) == Some(&b'-');
    let start = at + usize::from(negative);
    let mut magnitude = 0u64;
    let mut end = start;
    while let Some(digit) = text.get(end).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
        end += 1;
    }
    if end == start || (end - start > 1 && text[start] == b'0') {
        return None;
    }
    Some((T::from_parts(negative, magnitude)?, end))
}

/// Reads numbers that are followed by a comma within usual blocks, from `at` where a number is due; returns where the
/// next one is due. `at` is preceded by [`LOOK_BACK`] bytes.
#[inline(always)]
fn parse_blocks<T: Integer>(classes: impl Classes, text: &[u8], mut at: usize, values: &mut Vec<T>) -> Option<usize> {
    while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
        let digits = classes.digits(block);
        let mut starts = digits & !(digits << 1);
        let mut ends = !digits & (digits << 1);
        if ends == 0 || !usual_between::<T>(classes, block, digits, starts, ends) {
            break;
        }
        let mut next = 0;
        while ends != 0 {
            let (start, end) = (starts.trailing_zeros() as usize, ends.trailing_zeros() as usize);
            if block[end] != b',' {
                break;
            }
            if end - start > 1 && block[start] == b'0' {
                return None;
            }
            let negative = T::SIGNED && start > 0 && block[start - 1] == b'-';
            let window = text[..at + end].last_chunk::<LOOK_BACK>()?;
            values.push(T::from_parts(negative, magnitude(window, end - start)?)?);
            next = end + 1;
            starts &= starts - 1;
            ends &= ends - 1;
        }
        if next == 0 {
            break;
        }
        at += next;
    }
    Some(skip_space(text, at))
}

/// Whether what stands between numbers, up to the last end, is white space and minus signs right before digits alone.
/// The bytes at the ends are the caller's to check.
#[inline(always)]
fn usual_between<T: Integer>(classes: impl Classes, block: &[u8; BLOCK], digits: u64, starts: u64, ends: u64) -> bool {
    let last_end = BLOCK as u32 - 1 - ends.leading_zeros();
    let between = !digits & !ends & ((1 << last_end) - 1);
    if between == 0 {
        return true;
    }
    let minus = if T::SIGNED { classes.equal(block, b'-') } else { 0 };
    let rest = between & !minus;
    let space = |byte| classes.equal(block, byte);
    between & minus & !(starts >> 1) == 0
        && (rest == 0
            || rest & !space(b' ') == 0
            || rest & !(space(b' ') | space(b'\n') | space(b'\r') | space(b'\t')) == 0)
}

/// A bit a byte of the block, where `test` leaves the highest bit of the byte set.
#[inline(always)]
fn mask_of(block: &[u8; BLOCK], test: impl Fn(u64) -> u64) -> u64 {
    let mut mask = 0;
    for (index, bytes) in block.as_chunks::<8>().0.iter().enumerate() {
        // Gathers the highest bit of each byte into the highest byte.
        let flags = (test(u64::from_le_bytes(*bytes)) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= flags << (8 * index);
    }
    mask
}

const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
const ALL_ONES: u64 = 0x0101_0101_0101_0101;

/// The highest bit of each byte that is a digit.
#[inline(always)]
fn digits_of(word: u64) -> u64 {
    let low = word & !HIGH_BITS;
    let from_zero = low + ALL_ONES * u64::from(0x80 - b'0');
    let beyond_nine = low + ALL_ONES * u64::from(0x80 - b'9' - 1);
    from_zero & !beyond_nine & !word & HIGH_BITS
}

/// The highest bit of each byte that is `byte`.
#[inline(always)]
fn equal_to(word: u64, byte: u8) -> u64 {
    let difference = word ^ (ALL_ONES * u64::from(byte));
    !(((difference & !HIGH_BITS) + !HIGH_BITS) | difference) & HIGH_BITS
}

/// The value of the last `len` bytes of `window`, all digits.
#[inline(always)]
fn magnitude(window: &[u8; LOOK_BACK], len: usize) -> Option<u64> {
    let low = eight_digits(&window[16..], len.min(8));
    if len <= 8 {
        return Some(low);
    }
    let middle = eight_digits(&window[8..16], (len - 8).min(8));
    if len <= 16 {
        return Some(middle * 100_000_000 + low);
    }
    if len > MAX_DIGITS {
        return None;
    }
    let high = eight_digits(&window[..8], len - 16);
    high.checked_mul(10_000_000_000_000_000)?.checked_add(middle * 100_000_000 + low)
}

/// The value of the last `len` (1 to 8) of eight bytes, all digits.
#[inline(always)]
fn eight_digits(bytes: &[u8], len: usize) -> u64 {
    let bytes: [u8; 8] = bytes.try_into().unwrap_or_default();
    // The last digit is the highest byte: shift what precedes the number out, digits of value 0 in.
    let digits = (u64::from_le_bytes(bytes) & 0x0f0f_0f0f_0f0f_0f0f) & (u64::MAX << (8 * (8 - len)));
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let low = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let high = ((pairs >> 16) & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    low.wrapping_add(high) >> 32
}

#[cfg(test)]
mod tests;
