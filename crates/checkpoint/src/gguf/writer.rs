//! `GgufWriter`: declares metadata and tensors, then streams the data.
//!
//! The output is a plain `Write` and never seeks, so memory use is the header plus whatever piece
//! the caller hands over. The bytes depend on nothing but the input: the same metadata and tensors
//! make the same file. Temporary names, syncing and renaming are the caller's business.
//!
//! ```
//! # use larql_checkpoint::gguf::{GgufWriter, Metadata};
//! # use larql_compute::Dtype;
//! let mut metadata = Metadata::new();
//! metadata.set("general.architecture", "llama");
//! let mut writer = GgufWriter::new(metadata);
//! writer.declare("output_norm.weight", Dtype::F32, &[4])?;
//! let mut data = writer.begin(Vec::new(), "small.gguf")?;
//! data.tensor("output_norm.weight")?;
//! for value in [1f32, 2.0, 3.0, 4.0] {
//!     data.write(&value.to_le_bytes())?; // in pieces of any size
//! }
//! let file: Vec<u8> = data.finish()?;
//! # assert_eq!(file.len() % 32, 0);
//! # Ok::<(), larql_checkpoint::CheckpointError>(())
//! ```

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use larql_compute::Dtype;

use super::fault::GgufFault;
use super::header::{self, MAX_KEY, MAX_TENSOR_NAME};
use super::metadata::Metadata;
use super::value;
use crate::CheckpointError;

/// The version that is written; version 2 differs only in allowing no big-endian files.
const VERSION: u32 = 3;

/// A GGUF file that is being declared.
#[derive(Debug)]
pub struct GgufWriter {
    metadata: Metadata,
    tensors: Vec<Declared>,
    names: HashSet<String>,
}

#[derive(Debug)]
struct Declared {
    name: String,
    dtype: Dtype,
    dims: Vec<u64>,
    bytes: u64,
}

impl GgufWriter {
    /// A file with this metadata and no tensor yet. `general.alignment` is honoured where it is
    /// set; otherwise tensors are aligned to 32 bytes.
    pub fn new(metadata: Metadata) -> Self {
        Self { metadata, tensors: Vec::new(), names: HashSet::new() }
    }

    /// Declares the next tensor; `shape` is in GGUF's order, elements of a row first.
    ///
    /// # Errors
    /// The faults that reading such a tensor would find: its name, its dimensions, columns that
    /// are not whole blocks, a name that is declared already.
    pub fn declare(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
    ) -> Result<(), CheckpointError> {
        let dims: Vec<u64> = shape.iter().map(|&d| d as u64).collect();
        let bytes = check_name("a tensor name", name, MAX_TENSOR_NAME)
            .and_then(|()| header::tensor_bytes(name, dtype, &dims))
            .and_then(|bytes| {
                if self.names.insert(name.to_owned()) {
                    return Ok(bytes);
                }
                let first = PathBuf::from("the same declaration");
                Err(GgufFault::DuplicateTensor { tensor: name.to_owned(), first })
            })
            .map_err(|fault| CheckpointError::gguf(Path::new(name), 0, fault))?;
        self.tensors.push(Declared { name: name.to_owned(), dtype, dims, bytes });
        Ok(())
    }

    /// Writes the header to `out`; what comes back takes the data. `path` is for messages only.
    ///
    /// # Errors
    /// A key that GGUF does not allow, an alignment that is none, or what `out` reports.
    pub fn begin<W: Write>(
        self,
        out: W,
        path: impl Into<PathBuf>,
    ) -> Result<GgufData<W>, CheckpointError> {
        let path = path.into();
        let alignment = header::alignment(&self.metadata)?;
        let mut head = Vec::new();
        head.extend(b"GGUF");
        head.extend(VERSION.to_le_bytes());
        head.extend((self.tensors.len() as u64).to_le_bytes());
        head.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, kind, bytes) in self.metadata.encoded() {
            check_name("a metadata key", key, MAX_KEY)
                .map_err(|fault| CheckpointError::gguf(&path, head.len() as u64, fault))?;
            value::encode_str(key.as_bytes(), &mut head);
            head.extend((kind as u32).to_le_bytes());
            head.extend_from_slice(bytes);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            value::encode_str(tensor.name.as_bytes(), &mut head);
            head.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| head.extend(dim.to_le_bytes()));
            head.extend(tensor.dtype.ggml_type().to_le_bytes());
            head.extend(offset.to_le_bytes());
            let next = offset
                .checked_add(tensor.bytes)
                .and_then(|end| end.checked_next_multiple_of(alignment));
            offset = next.ok_or_else(|| {
                let (tensor, dims) = (tensor.name.clone(), tensor.dims.clone());
                let fault = GgufFault::DimensionsOverflow { tensor, dims };
                CheckpointError::gguf(&path, head.len() as u64, fault)
            })?;
        }
        let mut data =
            GgufData { out, path, alignment, tensors: self.tensors, next: 0, left: 0, at: 0 };
        data.put(&head)?;
        data.pad()?;
        Ok(data)
    }
}

/// What GGUF asks of a key or a tensor's name.
fn check_name(what: &'static str, name: &str, limit: u64) -> Result<(), GgufFault> {
    let found = name.len() as u64;
    if (1..=limit).contains(&found) {
        return Ok(());
    }
    Err(GgufFault::NameLength { what, found, limit })
}

/// A GGUF file whose header is written and whose data is being streamed.
#[derive(Debug)]
pub struct GgufData<W> {
    out: W,
    path: PathBuf,
    alignment: u64,
    tensors: Vec<Declared>,
    /// How many tensors were begun; the last of them is the current one.
    next: usize,
    /// Bytes that the current tensor still needs.
    left: u64,
    /// Bytes written in all.
    at: u64,
}

impl<W: Write> GgufData<W> {
    /// Begins the next tensor. Naming it guards against data in another order than declared.
    ///
    /// # Errors
    /// [`GgufFault::TensorOrder`] for any other name than the next one declared,
    /// [`GgufFault::TensorBytes`] where the one before is incomplete, and what the output reports.
    pub fn tensor(&mut self, name: &str) -> Result<(), CheckpointError> {
        self.complete()?;
        let expected = self.tensors.get(self.next);
        if expected.is_none_or(|t| t.name != name) {
            let expected = expected.map_or("the end of the file".to_owned(), |t| t.name.clone());
            return Err(self.fault(GgufFault::TensorOrder { expected, found: name.to_owned() }));
        }
        self.left = self.tensors[self.next].bytes;
        self.next += 1;
        Ok(())
    }

    /// Writes the next bytes of the current tensor.
    ///
    /// # Errors
    /// [`GgufFault::TensorBytes`] where they are more than the tensor has, and what the output
    /// reports.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.len() as u64 > self.left {
            return Err(self.wrong_bytes(bytes.len() as u64));
        }
        self.put(bytes)?;
        self.left -= bytes.len() as u64;
        Ok(())
    }

    /// Ends the file, flushes the output and gives it back (for syncing, say).
    ///
    /// # Errors
    /// [`GgufFault::TensorOrder`] where a declared tensor was not written,
    /// [`GgufFault::TensorBytes`] where the last one is incomplete, and what the output reports.
    pub fn finish(mut self) -> Result<W, CheckpointError> {
        self.complete()?;
        if let Some(missing) = self.tensors.get(self.next) {
            let expected = missing.name.clone();
            let found = "the end of the file".to_owned();
            return Err(self.fault(GgufFault::TensorOrder { expected, found }));
        }
        self.out.flush().map_err(|e| CheckpointError::io(&self.path, "write", e))?;
        Ok(self.out)
    }

    /// Checks that the current tensor has all its bytes, and pads after it.
    fn complete(&mut self) -> Result<(), CheckpointError> {
        if self.left > 0 {
            return Err(self.wrong_bytes(0));
        }
        self.pad()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.out.write_all(bytes).map_err(|e| CheckpointError::io(&self.path, "write", e))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Zeros up to the next multiple of the alignment.
    fn pad(&mut self) -> Result<(), CheckpointError> {
        let zeros = self.at.next_multiple_of(self.alignment) - self.at;
        // At most the alignment's upper bound: 1 MiB.
        self.put(&vec![0; zeros as usize])
    }

    /// The current tensor would end up with `more` bytes than it has now, which is wrong.
    fn wrong_bytes(&self, more: u64) -> CheckpointError {
        let current = self.next.checked_sub(1).map(|i| &self.tensors[i]);
        let (tensor, expected) = current.map_or(("(none begun)", 0), |t| (&t.name, t.bytes));
        let found = expected - self.left + more;
        self.fault(GgufFault::TensorBytes { tensor: tensor.to_owned(), expected, found })
    }

    fn fault(&self, fault: GgufFault) -> CheckpointError {
        CheckpointError::gguf(&self.path, self.at, fault)
    }
}
