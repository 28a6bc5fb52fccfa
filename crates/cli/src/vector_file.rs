//! Vectors from files: NumPy's `.npy`, or JSON.
//!
//! A `.npy` file is: magic, version, header length, a Python dictionary literal with `descr`,
//! `fortran_order` and `shape`, then the elements. Little-endian floats of 2, 4 or 8 bytes are
//! read, of one dimension or of any shape with a single long one.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::Diagnostic;

const MAGIC: &[u8] = b"\x93NUMPY";
/// A query vector is one row of a model: far below this, and an honest file cannot be above.
const MAX_BYTES: u64 = 64 << 20;

/// Reads a vector.
pub(crate) fn read(path: &Path) -> Result<Vec<f32>, Diagnostic> {
    let told = |what: String| Diagnostic::new(what).at_path(path);
    let cannot = |error| told(format!("the vector cannot be read: {error}"));
    // The limit holds while reading: a pipe or a device has no length to ask for.
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(told(format!("more than {MAX_BYTES} bytes are too many for one vector")));
    }
    let vector = if bytes.starts_with(MAGIC) { parse_npy(&bytes) } else { parse_json(&bytes) }
        .map_err(|why| {
            told(why)
                .help("numpy.save(\"query.npy\", vector.astype(\"float32\")), or [0.1, -0.2, …]")
        })?;
    if vector.is_empty() {
        return Err(told("the vector is empty".to_owned()));
    }
    if let Some(position) = vector.iter().position(|value| !value.is_finite()) {
        let value = vector[position];
        return Err(told(format!("the value at position {position} is not finite: {value}")));
    }
    Ok(vector)
}

fn parse_json(bytes: &[u8]) -> Result<Vec<f32>, String> {
    serde_json::from_slice(bytes)
        .map_err(|error| format!("neither a .npy file nor a JSON array of numbers: {error}"))
}

fn parse_npy(bytes: &[u8]) -> Result<Vec<f32>, String> {
    let cut = || "the .npy header is cut off".to_owned();
    let major = *bytes.get(6).ok_or_else(cut)?;
    let (header_start, header_len) = match major {
        1 => {
            let raw = bytes.get(8..10).and_then(|b| b.try_into().ok()).ok_or_else(cut)?;
            (10, usize::from(u16::from_le_bytes(raw)))
        }
        2 | 3 => {
            let raw = bytes.get(8..12).and_then(|b| b.try_into().ok()).ok_or_else(cut)?;
            (12, u32::from_le_bytes(raw) as usize)
        }
        other => return Err(format!(".npy version {other} is not known (1, 2 and 3 are)")),
    };
    let data_start = header_start + header_len;
    let header = bytes.get(header_start..data_start).ok_or_else(cut)?;
    let header =
        std::str::from_utf8(header).map_err(|_| "the .npy header is not text".to_owned())?;
    let data = &bytes[data_start..];

    let descr = entry(header, "descr").ok_or("the .npy header has no 'descr'")?;
    let descr = descr.trim_start_matches(['\'', '"']);
    let element: fn(&[u8]) -> f32 = match descr.get(..3) {
        Some("<f2") => |b| half_to_f32(u16::from_le_bytes([b[0], b[1]])),
        Some("<f4") => |b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Some("<f8") => {
            |b| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32
        }
        _ => {
            let found: String = descr.chars().take_while(|c| !matches!(c, '\'' | '"')).collect();
            return Err(format!("elements of type {found} are not read; <f2, <f4 and <f8 are"));
        }
    };
    let width = usize::from(descr.as_bytes()[2] - b'0');

    let dims = shape(header).ok_or("the .npy header has no readable 'shape'")?;
    if dims.iter().filter(|&&dim| dim != 1).count() > 1 {
        return Err(format!("one vector is needed, but the array has the shape {dims:?}"));
    }
    let expected = dims.iter().product::<usize>().checked_mul(width);
    if expected != Some(data.len()) {
        return Err(format!("the shape {dims:?} does not fit the {} bytes of data", data.len()));
    }
    Ok(data.chunks_exact(width).map(element).collect())
}

/// What follows `'key':` in a Python dictionary literal.
fn entry<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn shape(header: &str) -> Option<Vec<usize>> {
    let (inner, _) = entry(header, "shape")?.strip_prefix('(')?.split_once(')')?;
    inner
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().ok())
        .collect()
}

/// IEEE half precision, by exact scaling of the significand.
fn half_to_f32(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
        let header =
            format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn npy_of_every_float_width_is_read() {
        let f4: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let f8: Vec<u8> = [1.5f64, -2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let f2: Vec<u8> = [0x3e00u16, 0xc000].iter().flat_map(|x| x.to_le_bytes()).collect();
        for (descr, data) in [("<f4", f4), ("<f8", f8), ("<f2", f2)] {
            assert_eq!(parse_npy(&npy(descr, "(2,)", &data)), Ok(vec![1.5, -2.0]), "{descr}");
            assert_eq!(parse_npy(&npy(descr, "(1, 2)", &data)), Ok(vec![1.5, -2.0]), "{descr}");
        }
        assert_eq!(half_to_f32(0x0001), 2f32.powi(-24));
        assert_eq!(half_to_f32(0x7c00), f32::INFINITY);
    }

    #[test]
    fn every_lie_of_a_npy_file_is_an_error() {
        let data = [0u8; 8];
        let good = npy("<f4", "(2,)", &data);
        for end in 6..good.len() {
            assert!(parse_npy(&good[..end]).is_err(), "cut at {end}");
        }
        for (descr, shape) in [
            (">f4", "(2,)"),
            ("<i4", "(2,)"),
            ("<f4", "(3,)"),
            ("<f4", "(2, 2)"),
            ("<f4", "(18446744073709551615, 1)"),
            ("<f4", "(-1,)"),
            ("<f4", "2"),
            ("é", "(2,)"),
        ] {
            assert!(parse_npy(&npy(descr, shape, &data)).is_err(), "{descr} {shape}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_without_end_is_refused() {
        let error = read(Path::new("/dev/zero")).expect_err("no vector is that long");
        assert!(format!("{error:?}").contains("too many for one vector"), "{error:?}");
    }

    #[test]
    fn json_arrays_are_read() {
        assert_eq!(parse_json(b"[0.5, -1, 2e1]"), Ok(vec![0.5, -1.0, 20.0]));
        assert!(parse_json(b"{\"a\": 1}").is_err());
        assert!(parse_json(b"[1, \"x\"]").is_err());
    }
}
