//! Ctrl-C. Work that looks at it stops cleanly; everything else it just ends.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether anything is running that looks at `REQUESTED`.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Set by the first Ctrl-C while something is.
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on the first Ctrl-C only sets [`requested`]; the second ends the process.
pub(crate) fn watch() {
    static HANDLER: Once = Once::new();
    REQUESTED.store(false, Ordering::SeqCst);
    WATCHED.store(true, Ordering::SeqCst);
    HANDLER.call_once(|| {
        let handler = || {
            if !WATCHED.load(Ordering::SeqCst) || REQUESTED.swap(true, Ordering::SeqCst) {
                // The second Ctrl-C does not wait for the clean-up.
                std::process::exit(130);
            }
        };
        // Where no handler can be set, Ctrl-C just kills, and a later run finds the leftovers.
        let _ = ctrlc::set_handler(handler);
    });
}

/// From now on Ctrl-C ends the process again.
pub(crate) fn unwatch() {
    WATCHED.store(false, Ordering::SeqCst);
}

/// Whether Ctrl-C was pressed since [`watch`].
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}
