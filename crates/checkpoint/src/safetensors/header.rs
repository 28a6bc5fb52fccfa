//! The header of one safetensors file: u64 length, JSON of that length, data without holes.
//!
//! The `safetensors` crate has the last word on what is valid, but not the first: its errors do
//! not always name the tensor, it lets the later of two equal names win, and its check of the
//! file's length can wrap. So everything is checked here, by name, and then handed to the crate.

use std::collections::HashSet;
use std::fmt;

use larql_compute::Dtype;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::SafetensorsTensor;
use super::fault::SafetensorsFault;
use crate::{CheckpointError, Map};

/// The limit of the safetensors specification.
pub(super) const MAX_HEADER: u64 = 100_000_000;
/// The one key of the header that is not a tensor.
const METADATA: &str = "__metadata__";

/// A tensor entry as it stands in the JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Parses and validates the header of `map`; tensors come in the order of their data.
pub(super) fn parse(map: &Map) -> Result<Vec<SafetensorsTensor>, CheckpointError> {
    tensors(map).map_err(|fault| CheckpointError::safetensors(map.path(), fault))
}

fn tensors(map: &Map) -> Result<Vec<SafetensorsTensor>, SafetensorsFault> {
    let (json, data_start) = split(map.bytes())?;
    let Pairs { mut pairs, duplicate } = parse_object::<RawTensor>(json, Some(METADATA))?;
    if let Some(tensor) = duplicate {
        return Err(SafetensorsFault::DuplicateTensor { tensor });
    }
    pairs.sort_by_key(|(_, raw)| raw.data_offsets);

    let mut infos = Vec::new();
    let mut tensors = Vec::new();
    let mut expected = 0;
    for (name, raw) in pairs {
        let (dtype, theirs) = dtype(&name, &raw.dtype)?;
        let bytes = tensor_bytes(&name, dtype, &raw.shape)?;
        let (begin, end) = raw.data_offsets;
        if begin != expected {
            return Err(SafetensorsFault::NotContiguous { tensor: name, found: begin, expected });
        }
        if end.checked_sub(begin) != Some(bytes) {
            return Err(SafetensorsFault::Length { tensor: name, begin, end, expected: bytes });
        }
        expected = end;
        let available = map.bytes().len() as u64 - data_start;
        if end > available {
            // Said before the sum of all is known: nothing past this point may be indexed.
            return Err(SafetensorsFault::DataLength { expected: end, found: available });
        }
        let shape: Vec<usize> = raw.shape.iter().map(|&d| d as usize).collect();
        let data_offsets = (begin as usize, end as usize);
        let info =
            safetensors::tensor::TensorInfo { dtype: theirs, shape: shape.clone(), data_offsets };
        infos.push((name.clone(), info));
        let range = (data_start + begin) as usize..(data_start + end) as usize;
        tensors.push(SafetensorsTensor { name, dtype, shape, map: map.clone(), range });
    }
    let found = map.bytes().len() as u64 - data_start;
    if found != expected {
        return Err(SafetensorsFault::DataLength { expected, found });
    }
    safetensors::tensor::Metadata::new(None, infos)
        .map_err(|e| SafetensorsFault::Crate { why: e.to_string() })?;
    Ok(tensors)
}

/// The JSON text, and where the data begins.
fn split(bytes: &[u8]) -> Result<(&str, u64), SafetensorsFault> {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(SafetensorsFault::TooSmall { len: bytes.len() as u64 });
    };
    let found = u64::from_le_bytes(*head);
    if found > MAX_HEADER {
        return Err(SafetensorsFault::HeaderTooLarge { found, limit: MAX_HEADER });
    }
    let left = rest.len() as u64;
    if found > left {
        return Err(SafetensorsFault::HeaderTruncated { found, left });
    }
    let header = &rest[..found as usize];
    if header.first() != Some(&b'{') {
        return Err(SafetensorsFault::NotAnObject);
    }
    let json = std::str::from_utf8(header)
        .map_err(|e| SafetensorsFault::NotUtf8 { valid: e.valid_up_to() })?;
    Ok((json, 8 + found))
}

/// Our dtype and the crate's for a name in the file.
fn dtype(tensor: &str, name: &str) -> Result<(Dtype, safetensors::Dtype), SafetensorsFault> {
    match name {
        "F32" => Ok((Dtype::F32, safetensors::Dtype::F32)),
        "F16" => Ok((Dtype::F16, safetensors::Dtype::F16)),
        "BF16" => Ok((Dtype::BF16, safetensors::Dtype::BF16)),
        _ => {
            let (tensor, found) = (tensor.to_owned(), name.to_owned());
            Err(SafetensorsFault::UnknownDtype { tensor, found })
        }
    }
}

/// Bytes that the shape takes; a shape without dimensions is one element.
fn tensor_bytes(tensor: &str, dtype: Dtype, shape: &[u64]) -> Result<u64, SafetensorsFault> {
    if shape.contains(&0) {
        let (tensor, shape) = (tensor.to_owned(), shape.to_vec());
        return Err(SafetensorsFault::ZeroDimension { tensor, shape });
    }
    shape
        .iter()
        .try_fold(dtype.block_bytes() as u64, |bytes, &d| bytes.checked_mul(d))
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| SafetensorsFault::ShapeOverflow {
            tensor: tensor.to_owned(),
            shape: shape.to_vec(),
        })
}

/// The members of a JSON object, in order, and the first name that stands twice.
pub(super) struct Pairs<T> {
    pub(super) pairs: Vec<(String, T)>,
    pub(super) duplicate: Option<String>,
}

/// Parses `json` as an object whose members are all `T`; the member `skip` is passed over.
pub(super) fn parse_object<T: DeserializeOwned>(
    json: &str,
    skip: Option<&'static str>,
) -> Result<Pairs<T>, SafetensorsFault> {
    let invalid = |e: serde_json::Error| SafetensorsFault::Json { why: e.to_string() };
    let mut json = serde_json::Deserializer::from_str(json);
    let pairs = json.deserialize_map(PairsVisitor::<T> { skip, of: Default::default() });
    let pairs = pairs.map_err(invalid)?;
    json.end().map_err(invalid)?;
    Ok(pairs)
}

/// serde's maps let the later of two equal names win in silence; this one notices.
struct PairsVisitor<T> {
    skip: Option<&'static str>,
    of: std::marker::PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for PairsVisitor<T> {
    type Value = Pairs<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<T>, A::Error> {
        let mut names = HashSet::new();
        let (mut pairs, mut duplicate) = (Vec::new(), None);
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) && duplicate.is_none() {
                duplicate = Some(name.clone());
            }
            if self.skip == Some(name.as_str()) {
                map.next_value::<IgnoredAny>()?;
            } else {
                pairs.push((name, map.next_value()?));
            }
        }
        Ok(Pairs { pairs, duplicate })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PairsVisitor { skip: None, of: Default::default() })
    }
}
