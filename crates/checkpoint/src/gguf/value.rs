//! `Value` and `Array`: what a metadata key holds, borrowed from the file.

use std::path::Path;

use super::fault::GgufFault;
use crate::CheckpointError;

/// The type of a metadata value; the numbers are GGUF's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are the documentation: they are GGUF's own")]
pub enum Kind {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl Kind {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Lower-case name (`u32`, `str`, `array`).
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "str",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of a value; `None` for strings and arrays, whose length stands in the file.
    pub(super) fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }

    /// The fewest bytes that a value can take: what a claimed count is held against.
    pub(super) fn min_size(self) -> u64 {
        match self {
            Self::Str => 8,
            Self::Array => 12,
            _ => self.size().unwrap_or(1) as u64,
        }
    }
}

/// One metadata value. Strings and arrays borrow the file.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation: they are GGUF's own")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// The type of this value.
    pub fn kind(&self) -> Kind {
        match self {
            Self::U8(_) => Kind::U8,
            Self::I8(_) => Kind::I8,
            Self::U16(_) => Kind::U16,
            Self::I16(_) => Kind::I16,
            Self::U32(_) => Kind::U32,
            Self::I32(_) => Kind::I32,
            Self::F32(_) => Kind::F32,
            Self::Bool(_) => Kind::Bool,
            Self::Str(_) => Kind::Str,
            Self::Array(_) => Kind::Array,
            Self::U64(_) => Kind::U64,
            Self::I64(_) => Kind::I64,
            Self::F64(_) => Kind::F64,
        }
    }

    /// The value as an integer, whatever its width; `None` for everything else (floats, booleans).
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(v) => v.into(),
            Self::I8(v) => v.into(),
            Self::U16(v) => v.into(),
            Self::I16(v) => v.into(),
            Self::U32(v) => v.into(),
            Self::I32(v) => v.into(),
            Self::U64(v) => v.into(),
            Self::I64(v) => v.into(),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Str(_) | Self::Array(_) => {
                return None;
            }
        })
    }

    /// The value as a float: f32, f64 or any integer; `None` for everything else.
    pub fn as_float(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            _ => self.as_int().map(|v| v as f64),
        }
    }

    /// The text, where it is a string.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The boolean, where it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The array, where it is one.
    pub fn as_array(&self) -> Option<Array<'a>> {
        match *self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// A value of fixed size from exactly its bytes.
    pub(super) fn scalar(kind: Kind, bytes: &[u8]) -> Option<Self> {
        Some(match kind {
            Kind::U8 => Self::U8(u8::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I8 => Self::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            Kind::U16 => Self::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I16 => Self::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            Kind::U32 => Self::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I32 => Self::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::F32 => Self::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::Bool => Self::Bool(u8::from_le_bytes(bytes.try_into().ok()?) != 0),
            Kind::U64 => Self::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I64 => Self::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            Kind::F64 => Self::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            Kind::Str | Kind::Array => return None,
        })
    }

    /// Appends the value's GGUF encoding, without its type number.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::U8(v) => out.extend(v.to_le_bytes()),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push(v.into()),
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
            Self::Str(v) => encode_str(v.as_bytes(), out),
            Self::Array(v) => {
                encode_array_head(v.kind, v.len, out);
                out.extend_from_slice(v.bytes);
            }
        }
    }
}

/// Appends a string: u64 length, bytes.
pub(super) fn encode_str(text: &[u8], out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}

/// Appends what stands before an array's elements: u32 type, u64 count.
pub(super) fn encode_array_head(kind: Kind, len: usize, out: &mut Vec<u8>) {
    out.extend((kind as u32).to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::U8(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}"),
            Self::U16(v) => write!(f, "{v}"),
            Self::I16(v) => write!(f, "{v}"),
            Self::U32(v) => write!(f, "{v}"),
            Self::I32(v) => write!(f, "{v}"),
            Self::F32(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::Str(v) => f.write_str(v),
            Self::Array(v) => write!(f, "{} x {}", v.len, v.kind.name()),
            Self::U64(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
        }
    }
}

macro_rules! value_from {
    ($($type:ty => $variant:ident),*) => {
        $(impl From<$type> for Value<'_> {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}
value_from!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64,
    i64 => I64, f32 => F32, f64 => F64, bool => Bool);

impl<'a> From<&'a str> for Value<'a> {
    fn from(value: &'a str) -> Self {
        Self::Str(value)
    }
}

/// A metadata array: `len` elements of one kind, still encoded as in the file. The structure was
/// walked when the file was opened, so iteration cannot run out of bytes; only the text of string
/// elements is checked as they are read.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    pub(super) kind: Kind,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
    /// For error messages: the key, the file, and where in it `bytes` begin.
    pub(super) key: &'a str,
    pub(super) path: &'a Path,
    pub(super) offset: u64,
}

impl<'a> Array<'a> {
    /// An encoded array (u32 type, u64 count, elements) whose structure has been walked already.
    pub(super) fn decode(bytes: &'a [u8], key: &'a str, path: &'a Path, offset: u64) -> Self {
        let number = bytes.first_chunk::<4>().map_or(0, |b| u32::from_le_bytes(*b));
        let len = bytes[4..].first_chunk::<8>().map_or(0, |b| u64::from_le_bytes(*b));
        let kind = Kind::from_number(number).unwrap_or(Kind::U8);
        Self { kind, len: len as usize, bytes: &bytes[12..], key, path, offset: offset + 12 }
    }

    /// Type of every element.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements of an array of numbers or booleans; `None` for strings and nested arrays.
    pub fn scalars(&self) -> Option<impl ExactSizeIterator<Item = Value<'a>> + use<'a>> {
        let kind = self.kind;
        let size = kind.size()?;
        Some(
            self.bytes
                .chunks_exact(size)
                .map(move |b| Value::scalar(kind, b).unwrap_or(Value::Bool(false))),
        )
    }

    /// The bytes of every string; `None` where the elements are not strings.
    pub fn byte_strings(&self) -> Option<ByteStrings<'a>> {
        (self.kind == Kind::Str).then_some(ByteStrings { rest: self.bytes, left: self.len })
    }

    /// Every string; `None` where the elements are not strings.
    ///
    /// # Errors
    /// An element is [`GgufFault::NotUtf8`] where its bytes are no text; the message names its
    /// position.
    pub fn strings(&self) -> Option<impl Iterator<Item = Result<&'a str, CheckpointError>>> {
        let array = *self;
        Some(self.byte_strings()?.enumerate().map(move |(i, bytes)| {
            std::str::from_utf8(bytes).map_err(|_| {
                let offset = bytes.as_ptr() as usize - array.bytes.as_ptr() as usize;
                let what = format!("string {i} of {}", array.key);
                CheckpointError::gguf(
                    array.path,
                    array.offset + offset as u64,
                    GgufFault::NotUtf8 { what },
                )
            })
        }))
    }

    /// The elements of an array of arrays; `None` where the elements are not arrays.
    pub fn arrays(&self) -> Option<Vec<Array<'a>>> {
        if self.kind != Kind::Array {
            return None;
        }
        let mut out = Vec::new();
        let mut at = 0;
        for _ in 0..self.len {
            let inner =
                Self::decode(&self.bytes[at..], self.key, self.path, self.offset + at as u64);
            let len = inner.encoded_len();
            out.push(Self { bytes: &inner.bytes[..len], ..inner });
            at += 12 + len;
        }
        Some(out)
    }

    /// Bytes that the elements take; `self.bytes` may run on past them.
    fn encoded_len(&self) -> usize {
        match self.kind {
            Kind::Str => {
                let mut strings = ByteStrings { rest: self.bytes, left: self.len };
                strings.by_ref().for_each(drop);
                self.bytes.len() - strings.rest.len()
            }
            Kind::Array => {
                let mut at = 0;
                for _ in 0..self.len {
                    let inner = Self::decode(&self.bytes[at..], self.key, self.path, 0);
                    at += 12 + inner.encoded_len();
                }
                at
            }
            _ => self.len * self.kind.size().unwrap_or(0),
        }
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, self.len, self.bytes) == (other.kind, other.len, other.bytes)
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({} x {})", self.len, self.kind.name())
    }
}

/// Iterator over the bytes of the strings of an [`Array`].
#[derive(Debug, Clone)]
pub struct ByteStrings<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for ByteStrings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.left = self.left.checked_sub(1)?;
        let (head, rest) = self.rest.split_first_chunk::<8>()?;
        let (text, rest) = rest.split_at_checked(u64::from_le_bytes(*head) as usize)?;
        self.rest = rest;
        Some(text)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ByteStrings<'_> {}
