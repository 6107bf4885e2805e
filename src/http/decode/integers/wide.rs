//! Vector instructions (AVX2): 64 bytes are classified at once, and four token ids converted at once.
//!
//! Invariant: what is read here is what the portable way reads. Token ids end at a block that holds anything but numbers
//! of at most eight digits, commas and blanks; it is left to that way.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi128_si64, _mm_extract_epi64, _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_min_epu8, _mm256_movemask_epi8, _mm256_packus_epi32, _mm256_permute4x64_epi64,
    _mm256_set_epi64x, _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_sub_epi8, _mm256_subs_epu8,
};

use fearless_simd::{Avx2, Level, kernel};

use super::{BLOCK, Classes, LOOK_BACK};

/// Bytes of text that one number is converted from.
const WINDOW: usize = 8;
/// Numbers converted at once.
const LANES: usize = 4;
/// Most numbers that end in a block, and room for the lanes beyond them.
const ROOM: usize = BLOCK / 2 + LANES;

/// Reads numbers that are followed by a comma, from `at` where one is due; returns where the next one is due. `at` is
/// preceded by [`LOOK_BACK`] bytes.
pub(super) fn parse_tokens(text: &[u8], at: usize, values: &mut Vec<u32>) -> usize {
    match Level::new().as_avx2() {
        Some(avx2) => tokens(avx2, text, at, values),
        None => at,
    }
}

/// As the portable way; reads nothing without AVX2.
pub(super) fn parse_hashes(text: &[u8], at: usize, values: &mut Vec<i64>) -> Option<usize> {
    match Level::new().as_avx2() {
        Some(avx2) => hashes(avx2, text, at, values),
        None => Some(at),
    }
}

kernel!(
    fn hashes(avx2: Avx2, text: &[u8], at: usize, values: &mut Vec<i64>) -> Option<usize> {
        super::parse_blocks(avx2, text, at, values)
    }
);

impl Classes for Avx2 {
    #[inline(always)]
    fn digits(self, block: &[u8; BLOCK]) -> u64 {
        digits_in(self, block)
    }

    #[inline(always)]
    fn equal(self, block: &[u8; BLOCK], byte: u8) -> u64 {
        equal_in(self, block, byte)
    }
}

kernel!(
    fn tokens(avx2: Avx2, text: &[u8], at: usize, values: &mut Vec<u32>) -> usize {
        const { assert!(WINDOW <= LOOK_BACK) };
        let mut at = at;
        let mut count = values.len();
        while let Some(window) = text.get(at - WINDOW..).and_then(|rest| rest.first_chunk::<{ BLOCK + WINDOW }>()) {
            let Some(Numbers { mut starts, mut ends }) = numbers_of(avx2, window) else { break };
            let found = ends.count_ones() as usize;
            let last_end = 63 - ends.leading_zeros() as usize;
            if values.len() < count + ROOM {
                values.resize(values.capacity().max(count + ROOM), 0);
            }
            let out = values[count..count + ROOM].as_chunks_mut::<LANES>().0;
            for lanes in out.iter_mut().take(found.div_ceil(LANES)) {
                // A lane without a number converts something, and is overwritten or cut off.
                let mut digits = || {
                    let (start, end) = (starts.trailing_zeros(), ends.trailing_zeros());
                    starts &= starts.wrapping_sub(1);
                    ends &= ends.wrapping_sub(1);
                    let bytes = window[end as usize % BLOCK..].first_chunk::<WINDOW>().copied().unwrap_or_default();
                    // The number's bytes are the highest: shifts are modulo 64, and eight digits need none.
                    u64::from_le_bytes(bytes) & u64::MAX.wrapping_shl(start.wrapping_sub(end).wrapping_mul(8))
                };
                *lanes = convert(avx2, [digits(), digits(), digits(), digits()]);
            }
            count += found;
            at += last_end + 1;
        }
        values.truncate(count);
        at
    }
);

/// Where the numbers of a block begin and end, a bit a byte; the last begin may lack its end.
struct Numbers {
    starts: u64,
    ends: u64,
}

kernel!(
    /// `None` unless the block, which follows a window, has a number's end, and up to the last one nothing unusual.
    #[inline]
    fn numbers_of(avx2: Avx2, window: &[u8; BLOCK + WINDOW]) -> Option<Numbers> {
        let block = window.last_chunk()?;
        let digits = digits_in(avx2, block);
        let (starts, ends) = (digits & !(digits << 1), !digits & digits << 1);
        if ends == 0 {
            return None;
        }
        let to_last_end = u64::MAX >> ends.leading_zeros();
        let between = !digits & !ends & to_last_end;
        if between != 0 && between & !equal_in(avx2, block, b' ') != 0 {
            return None;
        }
        let leading_zeros = starts & equal_in(avx2, block, b'0') & digits >> 1;
        let of_two = digits & digits << 1;
        let of_four = of_two & of_two << 2;
        let of_nine = of_four & of_four << 4 & digits << 8;
        let unusual = ends & !equal_in(avx2, block, b',') | (leading_zeros | of_nine) & to_last_end;
        (unusual == 0).then_some(Numbers { starts, ends })
    }
);

kernel!(
    #[inline]
    fn digits_in(avx2: Avx2, block: &[u8; BLOCK]) -> u64 {
        let [low, high] = halves(avx2, block).map(|half| {
            let value = _mm256_sub_epi8(half, _mm256_set1_epi8(b'0'.cast_signed()));
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(value, _mm256_set1_epi8(9)), value))
        });
        u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned())
    }
);

kernel!(
    #[inline]
    fn equal_in(avx2: Avx2, block: &[u8; BLOCK], byte: u8) -> u64 {
        let [low, high] = halves(avx2, block)
            .map(|half| _mm256_movemask_epi8(_mm256_cmpeq_epi8(half, _mm256_set1_epi8(byte.cast_signed()))));
        u64::from(high.cast_unsigned()) << 32 | u64::from(low.cast_unsigned())
    }
);

kernel!(
    #[inline]
    fn halves(avx2: Avx2, block: &[u8; BLOCK]) -> [__m256i; 2] {
        let [a, b, c, d, e, f, g, h] =
            std::array::from_fn(|word| block.as_chunks().0.get(word).copied().map_or(0, i64::from_le_bytes));
        [_mm256_set_epi64x(d, c, b, a), _mm256_set_epi64x(h, g, f, e)]
    }
);

kernel!(
    /// The values of four times eight characters, the first the lowest byte; a byte of zero counts as the digit.
    #[inline]
    fn convert(avx2: Avx2, text: [u64; 4]) -> [u32; 4] {
        let [a, b, c, d] = text.map(u64::cast_signed);
        // Below "0" is zero: bytes that were masked out.
        let digits = _mm256_subs_epu8(_mm256_set_epi64x(d, c, b, a), _mm256_set1_epi8(b'0'.cast_signed()));
        let pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x01_0a));
        let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(0x0001_0064));
        let fours = _mm256_packus_epi32(fours, fours);
        let eights = _mm256_madd_epi16(fours, _mm256_set1_epi32(0x0001_2710));
        let eights = _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b10_00>(eights));
        let (low, high) = (_mm_cvtsi128_si64(eights).cast_unsigned(), _mm_extract_epi64::<1>(eights).cast_unsigned());
        [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
    }
);
