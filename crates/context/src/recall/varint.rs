//! Variable-length integers with seven bits per byte.

pub(super) fn write(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number and advances. `None` if the input ends early or is not a valid number.
pub(super) fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Maps signed to unsigned numbers so that small absolute values stay small.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(super) fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip(value in any::<u64>(), signed in any::<i64>()) {
            let mut bytes = Vec::new();
            super::write(&mut bytes, value);
            super::write(&mut bytes, super::zigzag(signed));
            let mut rest = bytes.as_slice();
            prop_assert_eq!(super::read(&mut rest), Some(value));
            prop_assert_eq!(super::read(&mut rest).map(super::unzigzag), Some(signed));
            prop_assert_eq!(super::read(&mut rest), None);
        }
    }
}
