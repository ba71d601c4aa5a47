//! Random names, numbers and keys.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Returns 16 random bytes as hexadecimal digits.
pub(crate) fn random_hex() -> io::Result<String> {
    Ok(random_bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns a random number.
pub(crate) fn random_number() -> io::Result<u64> {
    random_bytes().map(u64::from_ne_bytes)
}

fn random_bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0u8; COUNT];
    let filled = rustix::io::retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    if filled < COUNT {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::random_hex;

    #[test]
    fn random_names_differ_and_have_32_digits() {
        let (first, second) = (random_hex().unwrap(), random_hex().unwrap());
        assert_ne!(first, second);
        assert!(first.len() == 32 && first.bytes().all(|byte| byte.is_ascii_hexdigit()), "{first}");
    }
}
