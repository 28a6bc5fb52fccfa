//! Where the tests find the demo model.

use std::path::PathBuf;

/// `$LARQL_TEST_MODEL`, else the user's cache, where `make test` puts it. `None` only where the
/// user asked to skip the tests that need it.
#[allow(clippy::disallowed_methods, reason = "tests may read the environment")]
pub(crate) fn demo_model() -> Option<PathBuf> {
    if std::env::var_os("LARQL_SKIP_MODEL_TESTS").is_some_and(|v| v == "1") {
        return None;
    }
    let path = match std::env::var_os("LARQL_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME"))
            .join(".cache/larql/gemma-3-270m-q4_k_m.gguf"),
    };
    assert!(
        path.is_file(),
        "{} is missing: `make test` fetches it; LARQL_SKIP_MODEL_TESTS=1 skips these tests",
        path.display()
    );
    Some(path)
}
