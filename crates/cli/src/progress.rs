//! Progress on stderr: a bar with rate and time left, on a terminal only; and Ctrl-C.

use std::sync::{Mutex, MutexGuard, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use larql_vindex::Progress;

use crate::context::Context;
use crate::interrupt;

/// Draws the phases of long work, one bar after the other, and relays Ctrl-C to it.
pub(crate) struct Bars {
    shown: bool,
    bar: Mutex<ProgressBar>,
}

impl Bars {
    /// Starts listening to Ctrl-C. Only commands that poll [`Progress::cancelled`] make `Bars`;
    /// for the others Ctrl-C keeps its ordinary meaning.
    pub(crate) fn new(context: &Context) -> Bars {
        interrupt::watch();
        Bars { shown: context.shows_progress(), bar: Mutex::new(ProgressBar::hidden()) }
    }

    fn bar(&self) -> MutexGuard<'_, ProgressBar> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Bars {
    fn start(&self, phase: &str, total: u64, unit: &str) {
        if !self.shown {
            return;
        }
        let counts = if unit == "bytes" {
            "{decimal_bytes:>10}/{decimal_total_bytes} {decimal_bytes_per_sec}".to_owned()
        } else {
            // A brace in a unit's name would be read as a placeholder.
            format!("{{human_pos:>10}}/{{human_len}} {} {{per_sec}}", unit.replace(['{', '}'], ""))
        };
        let template = format!(
            "{{prefix:<22.bold}} {{bar:24.cyan/dim}} {{percent:>3}} % {counts}, {{eta}} left"
        );
        // The template is a constant but for the unit; a fault in it must not stop the work.
        let style = ProgressStyle::with_template(&template)
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("━╸─");
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        bar.set_style(style);
        bar.set_prefix(phase.to_owned());
        *self.bar() = bar;
    }

    fn advance(&self, n: u64) {
        self.bar().inc(n);
    }

    fn finish(&self) {
        self.bar().finish_and_clear();
    }

    fn cancelled(&self) -> bool {
        interrupt::requested()
    }
}

impl Drop for Bars {
    /// Work that fails leaves its bar; it must not stand in the way of the error message.
    fn drop(&mut self) {
        self.bar().finish_and_clear();
    }
}
