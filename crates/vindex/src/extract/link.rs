//! Brings a file into a vindex without moving its bytes, where the file system can.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use crate::manifest::WeightsOrigin;
use crate::{Progress, VindexError};

/// Bytes copied between two looks at the progress listener.
const CHUNK: usize = 4 << 20;

/// Makes `destination` a hard link of `source`, else a copy-on-write clone, else a copy; with
/// `private`, a clone or a copy. Symbolic links (a model hub's cache is full of them) are followed.
///
/// # Errors
/// The system's, for the copy; [`VindexError::Cancelled`].
pub(super) fn bring(
    source: &Path,
    destination: &Path,
    private: bool,
    progress: &dyn Progress,
) -> Result<WeightsOrigin, VindexError> {
    let source = &std::fs::canonicalize(source).map_err(VindexError::io("open", source))?;
    // A hard link fails across file systems, on some without links, and for files of others where
    // the kernel protects them. None of these is an error: the next way is tried.
    if !private && std::fs::hard_link(source, destination).is_ok() {
        return Ok(WeightsOrigin::Linked);
    }
    let input = File::open(source).map_err(VindexError::io("open", source))?;
    let output = File::create_new(destination).map_err(VindexError::io("create", destination))?;
    if clone(&input, &output) {
        return Ok(WeightsOrigin::Reflinked);
    }
    copy(input, source, output, destination, progress)?;
    Ok(WeightsOrigin::Copied)
}

#[cfg(target_os = "linux")]
fn clone(input: &File, output: &File) -> bool {
    rustix::fs::ioctl_ficlone(output, input).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn clone(_input: &File, _output: &File) -> bool {
    false
}

fn copy(
    mut input: File,
    source: &Path,
    mut output: File,
    destination: &Path,
    progress: &dyn Progress,
) -> Result<(), VindexError> {
    let size = input.metadata().map_err(VindexError::io("read", source))?.len();
    progress.start("copying", size, "bytes");
    let mut buffer = vec![0; CHUNK];
    loop {
        if progress.cancelled() {
            return Err(VindexError::Cancelled { left: "nothing was written".to_owned() });
        }
        let n = input.read(&mut buffer).map_err(VindexError::io("read", source))?;
        if n == 0 {
            break;
        }
        output.write_all(&buffer[..n]).map_err(VindexError::io("write", destination))?;
        progress.advance(n as u64);
    }
    progress.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NoProgress;

    #[test]
    fn a_link_shares_and_a_private_file_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::write(&source, b"weights").unwrap();
        let linked = dir.path().join("linked");
        assert_eq!(bring(&source, &linked, false, &NoProgress).unwrap(), WeightsOrigin::Linked);
        let private = dir.path().join("private");
        assert_ne!(bring(&source, &private, true, &NoProgress).unwrap(), WeightsOrigin::Linked);
        std::fs::write(&source, b"changed").unwrap();
        assert_eq!(std::fs::read(&linked).unwrap(), b"changed");
        assert_eq!(std::fs::read(&private).unwrap(), b"weights");
    }
}
