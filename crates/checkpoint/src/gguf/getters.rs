//! Typed look-ups in [`Metadata`]: any integer width where an integer is wanted, an error that
//! names the key where the value is something else, `None` where the key is missing.

use super::fault::GgufFault;
use super::metadata::Metadata;
use super::value::{Array, Value};
use crate::CheckpointError;

type Result<T> = std::result::Result<T, CheckpointError>;

impl Metadata {
    /// `get` turned into an error where there is no such key:
    /// `metadata.require("llama.block_count", Metadata::get_usize)`.
    ///
    /// # Errors
    /// [`GgufFault::MissingKey`], and whatever `get` finds.
    pub fn require<'a, T>(
        &'a self,
        key: &str,
        get: impl FnOnce(&'a Self, &str) -> Result<Option<T>>,
    ) -> Result<T> {
        get(self, key)?
            .ok_or_else(|| self.fault(key, GgufFault::MissingKey { key: key.to_owned() }))
    }

    /// A non-negative integer of any width that fits in u32.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an integer from 0 to 2^32 - 1", |v| u32::try_from(v.as_int()?).ok())
    }

    /// A non-negative integer of any width that fits in u64.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer from 0 to 2^64 - 1", |v| u64::try_from(v.as_int()?).ok())
    }

    /// A non-negative integer of any width that fits in usize.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a non-negative integer", |v| usize::try_from(v.as_int()?).ok())
    }

    /// An integer of any width that fits in i64.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_i64(&self, key: &str) -> Result<Option<i64>> {
        self.typed(key, "an integer", |v| i64::try_from(v.as_int()?).ok())
    }

    /// A finite float (f32, f64 or an integer).
    ///
    /// # Errors
    /// [`GgufFault::WrongType`], [`GgufFault::NotFinite`].
    pub fn get_f32(&self, key: &str) -> Result<Option<f32>> {
        let value = self.typed(key, "a number", Value::as_float)?;
        match value {
            // A finite f64 beyond f32's range becomes infinite, and is refused as such.
            Some(found) if !(found as f32).is_finite() => {
                let key_name = key.to_owned();
                Err(self.fault(key, GgufFault::NotFinite { key: key_name, position: 0, found }))
            }
            _ => Ok(value.map(|v| v as f32)),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    /// A string.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }

    /// An array of any kind.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_array(&self, key: &str) -> Result<Option<Array<'_>>> {
        self.typed(key, "an array", Value::as_array)
    }

    /// An array of strings; read it with [`Array::strings`] or [`Array::byte_strings`].
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else.
    pub fn get_string_array(&self, key: &str) -> Result<Option<Array<'_>>> {
        self.typed(key, "an array of strings", |v| {
            v.as_array().filter(|a| a.byte_strings().is_some())
        })
    }

    /// An array of integers of any width that fit in u32.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else, named by its position.
    pub fn get_u32_array(&self, key: &str) -> Result<Option<Vec<u32>>> {
        self.elements(key, "an integer from 0 to 2^32 - 1", |v| u32::try_from(v.as_int()?).ok())
    }

    /// An array of integers of any width that fit in i32.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else, named by its position.
    pub fn get_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.elements(key, "an integer from -2^31 to 2^31 - 1", |v| i32::try_from(v.as_int()?).ok())
    }

    /// An array of booleans.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`] for anything else, named by its position.
    #[allow(
        clippy::redundant_closure_for_method_calls,
        reason = "the method has one lifetime only"
    )]
    pub fn get_bool_array(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.elements(key, "a boolean", |v| v.as_bool())
    }

    /// An array of numbers. Infinities pass (a score of minus infinity means "never"), NaN does
    /// not: it has no place in any order.
    ///
    /// # Errors
    /// [`GgufFault::WrongType`], [`GgufFault::NotFinite`].
    pub fn get_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>> {
        let values = self.elements(key, "a number", |v| v.as_float().map(|f| f as f32))?;
        if let Some(position) = values.iter().flatten().position(|v| v.is_nan()) {
            let fault = GgufFault::NotFinite { key: key.to_owned(), position, found: f64::NAN };
            return Err(self.fault(key, fault));
        }
        Ok(values)
    }

    /// The value of `key` through `convert`, or an error that says what it is instead.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(&value) {
            Some(converted) => Ok(Some(converted)),
            None => {
                let found = format!("{} ({})", short(&value), value.kind().name());
                Err(self.fault(key, GgufFault::WrongType { key: key.to_owned(), expected, found }))
            }
        }
    }

    /// Every element of the array `key` through `convert`.
    fn elements<T>(
        &self,
        key: &str,
        expected: &'static str,
        convert: impl Fn(&Value<'_>) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let scalars = |v: &Value<'_>| v.as_array().is_some_and(|a| a.scalars().is_some());
        let array = self.typed(key, "an array of numbers or booleans", |v| {
            scalars(v).then(|| v.as_array()).flatten()
        })?;
        let Some(values) = array.and_then(|a| a.scalars()) else { return Ok(None) };
        let converted: std::result::Result<Vec<T>, (usize, Value<'_>)> =
            values.enumerate().map(|(i, v)| convert(&v).ok_or((i, v))).collect();
        converted.map(Some).map_err(|(i, v)| {
            let found = format!("{} ({}) at position {i}", short(&v), v.kind().name());
            self.fault(key, GgufFault::WrongType { key: key.to_owned(), expected, found })
        })
    }
}

/// A value as an error message shows it: the first 40 characters.
fn short(value: &Value<'_>) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
