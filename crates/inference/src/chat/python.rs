//! What templates expect of Python: `json.dumps`, and which values are what.

use std::io;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `json.dumps`, as Hugging Face gives it to templates: not sorted, nothing escaped for HTML or to
/// ASCII, a blank after commas and colons.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // The default; anything else is refused rather than silently left out.
    if options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false)
        || options.get::<Option<bool>>("sort_keys")?.unwrap_or(false)
    {
        let what = "tojson knows neither ensure_ascii nor sort_keys";
        return Err(Error::new(ErrorKind::InvalidOperation, what));
    }
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(indent) => {
            let indent = " ".repeat(indent.min(16));
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let text = String::from_utf8(out)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(Value::from_safe_string(text))
}

/// One line, with a blank after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

/// Whether Python iterates over it: over text and what is not defined too, but not over `None`.
pub(super) fn is_iterable(value: &Value) -> bool {
    let kind = value.kind();
    kind != ValueKind::None && (kind == ValueKind::String || value.try_iter().is_ok())
}

/// Whether it has a length and elements, as Jinja2 asks: text and mappings too.
pub(super) fn is_sequence(value: &Value) -> bool {
    is_iterable(value) && (value.is_undefined() || value.len().is_some())
}

/// Whether it is a number, as `True` is in Python.
pub(super) fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}
