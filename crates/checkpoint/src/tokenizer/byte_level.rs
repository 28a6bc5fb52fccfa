//! GPT-2's spelling of bytes as printable characters.
//!
//! A byte-level vocabulary writes every byte of a token as one character: the printable Latin-1
//! bytes as themselves, the other 68 as U+0100 upwards in order. A space is therefore `Ġ`
//! (U+0120) and a newline `Ċ` (U+010A).

use std::sync::LazyLock;

/// The character that spells each byte.
static CHAR_OF_BYTE: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut table = ['\0'; 256];
    let mut next = 0x100u32;
    for (byte, slot) in table.iter_mut().enumerate() {
        let byte = byte as u32;
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable {
            byte
        } else {
            next += 1;
            next - 1
        };
        *slot = char::from_u32(code).unwrap_or('\0');
    }
    table
});

/// The byte that each character below U+0144 spells, where it spells one.
static BYTE_OF_CHAR: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut table = [None; 0x144];
    for (byte, &c) in CHAR_OF_BYTE.iter().enumerate() {
        table[c as usize] = Some(byte as u8);
    }
    table
});

/// The character that spells `byte`.
pub(super) fn char_of(byte: u8) -> char {
    CHAR_OF_BYTE[usize::from(byte)]
}

/// The byte that `c` spells, or None where `c` is not one of the 256.
pub(super) fn byte_of(c: char) -> Option<u8> {
    BYTE_OF_CHAR.get(c as usize).copied().flatten()
}

/// Appends the spelling of `bytes` to `out`.
pub(super) fn spell(bytes: &[u8], out: &mut String) {
    out.extend(bytes.iter().map(|&b| char_of(b)));
}

/// The bytes that `piece` spells, or None where some character spells none.
pub(super) fn unspell(piece: &str) -> Option<Vec<u8>> {
    piece.chars().map(byte_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(0xAD), '\u{143}');
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of(' '), None);
    }

    #[test]
    fn spelling_is_undone() {
        let mut spelled = String::new();
        spell("né 🚀\n".as_bytes(), &mut spelled);
        assert_eq!(unspell(&spelled).as_deref(), Some("né 🚀\n".as_bytes()));
        assert_eq!(unspell("a b"), None);
    }
}
