//! Running `larql` as a person would, and the demo model where a test needs it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::disallowed_methods, reason = "tests may read the environment; libraries may not")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The binary, with nothing on its input and no colour.
pub(crate) fn larql() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larql"));
    command.stdin(Stdio::null()).env_remove("NO_COLOR");
    command
}

/// What a run printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

/// Runs `larql` to its end.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    ran(larql().args(args))
}

pub(crate) fn ran(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("larql starts");
    Ran {
        stdout: String::from_utf8(stdout).expect("output is UTF-8"),
        stderr: String::from_utf8(stderr).expect("errors are UTF-8"),
        code: status.code(),
    }
}

impl Ran {
    /// The output of a run that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.stdout
    }

    /// The rows of a run with `--json` that succeeded.
    #[track_caller]
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).expect("--json prints JSON")
    }

    /// The message of a run that failed with `code`: an error of ours, on stderr, nothing else.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, wanted: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(self.stderr.starts_with("error: "), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        assert!(self.stdout.is_empty(), "{self:#?}");
        for wanted in wanted {
            assert!(self.stderr.contains(wanted), "{wanted:?} is not in {:#?}", self.stderr);
        }
        self.stderr
    }
}

/// The demo model: `$LARQL_TEST_MODEL`, else where `larql pull` puts it. `None` only where
/// LARQL_SKIP_MODEL_TESTS=1 says that tests may go without.
pub(crate) fn model() -> Option<PathBuf> {
    if std::env::var_os("LARQL_SKIP_MODEL_TESTS").is_some_and(|value| value == "1") {
        return None;
    }
    let path = match std::env::var_os("LARQL_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => {
            let home = std::env::home_dir().expect("a home directory");
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.unwrap_or_else(|| home.join(".cache"));
            cache.join("larql/gemma-3-270m-q4_k_m.gguf")
        }
    };
    assert!(
        path.exists(),
        "{} is missing: `make model` fetches it; LARQL_SKIP_MODEL_TESTS=1 skips the tests that need it",
        path.display()
    );
    Some(path)
}

/// A vindex of the demo model, made once for each test program, without labels computed.
pub(crate) fn vindex() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(|| {
        let model = model()?;
        let path = scratch("shared").join("gemma.vindex");
        let source = model.to_str().expect("UTF-8");
        let target = path.to_str().expect("UTF-8");
        run(&["extract-index", source, "-o", target, "--labels", "lazy"]).ok();
        Some(path)
    })
    .as_deref()
}

/// An empty directory of this name for the running test program.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the test program's path");
    let stem = program.file_stem().expect("a name").to_string_lossy().into_owned();
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(stem).join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}
